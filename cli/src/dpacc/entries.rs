//! Entries of a device program: functions marked `__dpa_rpc__` and `__dpa_global__` in its preprocessed source.

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

/// What stands for the markers in the preprocessed text.
pub(crate) const RPC: &str = "flexcast_marks_rpc";
pub(crate) const GLOBAL: &str = "flexcast_marks_global";

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// It gives nothing back.
    pub(crate) is_void: bool,
    pub(crate) parameters: Vec<Parameter>,
}

/// A parameter of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Parameter {
    /// Its type, as the source has it.
    pub(crate) ty: String,
    /// What a caller passes it as: types narrower than `int` become one.
    pub(crate) is_int: bool,
    /// Size of a structure, which is passed by value; 0 until the compiler has been asked. None of other types.
    pub(crate) structure: Option<usize>,
}

impl Parameter {
    /// Words that it takes in the buffer of a call.
    pub(crate) fn words(&self) -> usize {
        self.structure.map_or(1, |bytes| bytes.div_ceil(8))
    }
}

/// Types that are passed as `int`.
const INTS: [&str; 21] = [
    "char",
    "signed char",
    "unsigned char",
    "short",
    "unsigned short",
    "short int",
    "int",
    "signed",
    "signed int",
    "unsigned",
    "unsigned int",
    "bool",
    "_Bool",
    "int8_t",
    "uint8_t",
    "int16_t",
    "uint16_t",
    "int32_t",
    "uint32_t",
    "__be32",
    "flexio_dev_status_t",
];
/// Words that are part of a type, and no name of a parameter.
const TYPE_WORDS: [&str; 12] =
    ["char", "short", "int", "long", "signed", "unsigned", "float", "double", "void", "const", "volatile", "_Bool"];
/// Words that say nothing of a type's size.
const QUALIFIERS: [&str; 6] = ["const", "volatile", "restrict", "__restrict", "register", "__restrict__"];

/// What a call does not carry.
const FLOATS: [&str; 4] = ["float", "double", "__int128", "__uint128_t"];

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The text up to the bracket that closes the one before it.
fn inside(text: &str) -> Option<&str> {
    let mut depth = 1_u32;
    for (at, byte) in text.bytes().enumerate() {
        depth = match byte {
            b'(' => depth + 1,
            b')' => depth - 1,
            _ => depth,
        };
        if depth == 0 {
            return Some(&text[..at]);
        }
    }
    None
}

/// A declaration without the attributes in it, which say nothing of its types.
fn without_attributes(text: &str) -> String {
    let mut parts = text.split("__attribute__");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let part = part.trim_start();
        let behind = part.strip_prefix('(').and_then(|rest| Some(&rest[inside(rest)?.len() + 1..]));
        plain.push(' ');
        plain.push_str(behind.unwrap_or(part));
    }
    plain
}

/// Whether a marker between two texts is that of a type which both sides have.
fn marks_type(before: &str, behind: &str) -> bool {
    let begin = before.rfind([';', '}', '{']).map_or(0, |end| end + 1);
    let head = behind.split([';', '{', '(']).next().unwrap_or_default();
    let open = behind.as_bytes().get(head.len()).copied();
    behind.trim_start().starts_with(';')
        || before[begin..].split_whitespace().chain(head.split_whitespace()).any(|word| word == "typedef")
        // A definition: `struct x {`, with the mark before or behind the first word.
        || (open == Some(b'{')
            && ["struct", "union", "enum"]
                .iter()
                .any(|word| head.trim_start().starts_with(word) || before[begin..].trim() == *word))
}

/// Finds the entries that a preprocessed source defines.
///
/// # Errors
/// A marker without a function, or a parameter or an answer that a call cannot carry.
pub(crate) fn find(text: &str) -> anyhow::Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut rest = text;
    while let Some((at, marker)) = [RPC, GLOBAL].iter().filter_map(|mark| Some((rest.find(mark)?, *mark))).min() {
        let before = &rest[..at];
        rest = &rest[at + marker.len()..];
        if marks_type(before, rest) {
            continue;
        }
        // What returns may stand before the marker or behind it.
        let begin = before.rfind([';', '}', '{']).map_or(0, |end| end + 1);
        let end = rest.find([';', '{']).unwrap_or(rest.len());
        let is_defined = rest[end..].starts_with('{');
        let declaration = &without_attributes(&rest[..end]);
        let (head, parameters) = declaration.split_once('(').unwrap_or((declaration, ""));
        let name: String =
            head.trim_end().rsplit(|c: char| !c.is_ascii() || !is_word(c as u8)).next().unwrap_or("").into();
        if name.is_empty() || parameters.is_empty() {
            bail!("a marker of an entry (`__dpa_rpc__` or `__dpa_global__`) has no function behind it");
        }
        let list = inside(parameters).with_context(|| format!("the parameters of {name} do not end"))?;
        let returns = format!("{} {head}", without_attributes(&before[begin..]));
        let mut words = returns.split(|c: char| !(c.is_ascii() && is_word(c as u8)));
        if words.clone().any(|word| FLOATS.contains(&word)) && !returns.contains('*') {
            bail!("{name} gives back a floating-point number: a call carries integers and pointers");
        }
        let is_void = words.any(|word| word == "void") && !returns.contains('*');
        if is_defined {
            entries.push(Entry { parameters: parameters_of(&name, list)?, is_void, name });
        }
    }
    Ok(entries)
}

fn parameters_of(name: &str, list: &str) -> anyhow::Result<Vec<Parameter>> {
    let list = list.trim();
    if list.is_empty() || list == "void" {
        return Ok(Vec::new());
    }
    list.split(',').map(|text| parameter(name, text)).collect()
}

fn parameter(function: &str, text: &str) -> anyhow::Result<Parameter> {
    if text.contains('(') || text.contains("...") {
        bail!("{function} takes `{}`: a call carries integers and pointers", text.trim());
    }
    // An array is the address of its first element.
    let (text, array) = text.split_once('[').map_or((text, ""), |(text, _)| (text, " *"));
    let spaced = text.replace('*', " * ");
    let mut words: Vec<&str> = spaced.split_whitespace().filter(|word| !QUALIFIERS.contains(word)).collect();
    let is_name = |word: &str| word != "*" && !TYPE_WORDS.contains(&word);
    let named = match words.as_slice() {
        [] => bail!("{function} has a parameter without a type"),
        ["struct" | "union" | "enum", _, .., last] => is_name(last),
        ["struct" | "union" | "enum", ..] => false,
        [_, .., last] => is_name(last),
        [_] => false,
    };
    if named {
        words.pop();
    }
    let ty = words.join(" ") + array;
    let is_pointer = ty.ends_with('*');
    if !is_pointer && words.iter().any(|word| FLOATS.contains(word)) {
        bail!("{function} takes `{}`: a call carries integers, pointers and structures of them", text.trim());
    }
    let is_structure = !is_pointer && ["struct ", "union "].iter().any(|word| ty.starts_with(word));
    let is_int = INTS.contains(&&*ty) || ty.starts_with("enum");
    Ok(Parameter { is_int, structure: is_structure.then_some(0), ty })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(ty: &str, is_int: bool) -> Parameter {
        Parameter { ty: ty.to_owned(), is_int, structure: None }
    }

    #[test]
    fn structures_are_passed_by_value_and_types_may_have_the_mark() {
        let text = "flexcast_marks_global typedef unsigned long handle;\n\
            struct x { long a; } flexcast_marks_global;\nstruct flexcast_marks_global y { int b; };\n\
            flexcast_marks_global struct z { int b; };\n\
            flexcast_marks_rpc uint64_t f(struct x one, const struct y *two) { return 0; }";
        let found = find(text).unwrap();
        assert_eq!(found.len(), 1);
        let [one, two] = &found[0].parameters[..] else { panic!("{found:?}") };
        assert_eq!((&*one.ty, one.structure, one.words()), ("struct x", Some(0), 0));
        assert_eq!((&*two.ty, two.structure, two.words()), ("struct y *", None, 1));
        assert_eq!(Parameter { structure: Some(12), ..one.clone() }.words(), 2);
    }

    #[test]
    fn entries_are_found_whatever_their_order_of_words() {
        let text = "typedef uint64_t (handler)(uint64_t); handler init;\n\
            flexcast_marks_rpc uint64_t init(uint64_t data) { return f(data); }\n\
            void\nflexcast_marks_global\non_event(uint64_t __attribute__((unused)) arg0)\n{ }\n\
            flexcast_marks_rpc int many(int a, const char *name, unsigned char, struct x *p, enum kind k);\n\
            flexcast_marks_rpc int many(int a, const char *name, unsigned char b, \
            struct x *p, enum kind k) { return 0; }\n\
            flexcast_marks_rpc __attribute__((noinline)) uint64_t none(void) { return 0; }\n\
            flexcast_marks_rpc void *pointer(int a[4]) { return a; }\n\
            flexcast_marks_rpc uint64_t elsewhere(uint64_t a);";
        let found = find(text).unwrap();
        let word = parameter("uint64_t", false);
        assert_eq!(
            found,
            [
                Entry { name: "init".into(), is_void: false, parameters: vec![word.clone()] },
                Entry { name: "on_event".into(), is_void: true, parameters: vec![word] },
                Entry {
                    name: "many".into(),
                    is_void: false,
                    parameters: vec![
                        parameter("int", true),
                        parameter("char *", false),
                        parameter("unsigned char", true),
                        parameter("struct x *", false),
                        parameter("enum kind", true),
                    ],
                },
                Entry { name: "none".into(), is_void: false, parameters: vec![] },
                Entry { name: "pointer".into(), is_void: false, parameters: vec![parameter("int *", false)] },
            ]
        );
    }

    #[test]
    fn what_a_call_cannot_carry_is_named() {
        for (text, named) in [
            ("flexcast_marks_rpc int f(long double y) {", "f takes `long double y`"),
            ("flexcast_marks_rpc int f(int (*g)(int)) {", "f takes `int (*g)(int)`"),
            ("flexcast_marks_rpc int f(int a, ...) {", "f takes `...`"),
            ("flexcast_marks_rpc double f(int a) {", "f gives back a floating-point number"),
            ("flexcast_marks_rpc int x;", "no function behind it"),
            ("flexcast_marks_rpc int f(int a", "do not end"),
        ] {
            let error = find(text).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
