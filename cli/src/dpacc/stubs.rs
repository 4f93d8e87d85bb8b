//! Stubs of both sides: what unpacks the arguments of a call on the DPA, and what the host calls it by.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;

use super::entries::{Entry, Parameter};

/// Name of the function that unpacks the arguments of an entry.
fn unpack(name: &str) -> String {
    format!("{name}__dpacc_unpack")
}

/// Text in a string of C, or of the assembler: of a string of the assembler in one of C, quote it twice.
pub(super) fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The line that includes a source.
///
/// # Errors
/// No `#include` can name it.
fn include(source: &Path) -> anyhow::Result<String> {
    // Nothing is escaped in the name of a header.
    let name = source.to_str().filter(|name| !name.contains(['"', '\n', '\r']));
    let name = name.with_context(|| {
        format!("{}: no #include can name a path with a quote, a line break or no UTF-8: rename it", source.display())
    })?;
    Ok(format!("#include \"{name}\"\n"))
}

/// The place of each parameter in the buffer of a call, in words, and the words of all.
fn places(entry: &Entry) -> (Vec<usize>, usize) {
    let mut next = 0;
    let mut places = Vec::new();
    for parameter in &entry.parameters {
        places.push(next);
        next += parameter.words();
    }
    (places, next)
}

/// A source that has the compiler print the sizes of the structures that entries take, in their order, as lines of
/// [`SIZE`] and a number; `None` if they take none.
///
/// # Errors
/// No `#include` can name the source.
pub(super) fn sizes(source: &Path, entries: &[Entry]) -> anyhow::Result<Option<String>> {
    let structures: Vec<_> =
        entries.iter().flat_map(|entry| &entry.parameters).filter(|parameter| parameter.structure.is_some()).collect();
    let mut text = include(source)? + "__attribute__((used)) void flexcast_sizes(void)\n{\n";
    for parameter in &structures {
        let _ = writeln!(text, "\t__asm__ volatile(\"{SIZE} %0\" : : \"i\"(sizeof({})));", parameter.ty);
    }
    Ok((!structures.is_empty()).then(|| text + "}\n"))
}

/// What begins a line with a size; a comment of assembly.
pub(super) const SIZE: &str = "# flexcast_size";

/// A source of the DPA's side with what its entries need: each argument of a call takes eight bytes, or as many as it
/// has.
///
/// # Errors
/// No `#include` can name the source.
pub(super) fn device(source: &Path, entries: &[Entry]) -> anyhow::Result<String> {
    let mut text = include(source)?;
    for entry in entries {
        let arguments: Vec<String> = places(entry)
            .0
            .into_iter()
            .zip(&entry.parameters)
            .map(|(at, Parameter { ty, structure, .. })| match structure {
                Some(_) => format!("*({ty} *)((unsigned long *)argbuf + {at})"),
                None => format!("({ty})((unsigned long *)argbuf)[{at}]"),
            })
            .collect();
        let call = format!("{}({})", entry.name, arguments.join(", "));
        let body =
            if entry.is_void { format!("{call};\n\treturn 0;") } else { format!("return (unsigned long){call};") };
        let _ = write!(
            text,
            "\nunsigned long {name}(void *argbuf, void *func);\n__attribute__((used)) unsigned long {name}(void \
             *argbuf, void *func)\n{{\n\t(void)argbuf;\n\t(void)func;\n\t{body}\n}}\n",
            name = unpack(&entry.name)
        );
    }
    Ok(text)
}

/// The host's side: the image, a stub for each entry, and the application, which exists before `main` begins.
pub(super) fn host(app: &str, image: &Path, entries: &[Entry]) -> String {
    let mut text = format!(
        "#include <stdarg.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include \
         <libflexio/flexio.h>\n\n__asm__(\".section .rodata\\n.balign 64\\n{app}__elf:\\n.incbin \
         \\\"{}\\\"\\n{app}__elf_end:\\n.previous\\n\");\nextern const char {app}__elf[], {app}__elf_end[];\n\nstruct \
         flexio_app *{app};\n",
        quoted(&quoted(&image.display().to_string()))
    );
    // What a structure has in it makes no difference to how it is passed, as long as that is no floating point.
    let sizes: BTreeSet<usize> =
        entries.iter().flat_map(|entry| &entry.parameters).filter_map(|parameter| parameter.structure).collect();
    for bytes in sizes {
        let _ = writeln!(text, "\nstruct flexcast_argument_{bytes} {{\n\tunsigned char bytes[{bytes}];\n}};");
    }
    for (number, entry) in (0..).zip(entries) {
        // Each has an address of its own, whatever the linker folds.
        let name = &entry.name;
        let _ = write!(text, "\nvoid {name}(void)\n{{\n\t__asm__ volatile(\"\" : : \"r\"({number}));\n}}\n");
        let _ = write!(
            text,
            "\nstatic void {}__pack(void *argbuf, va_list pa)\n{{\n\t(void)argbuf;\n\t(void)pa;\n",
            entry.name
        );
        for (at, parameter) in places(entry).0.into_iter().zip(&entry.parameters) {
            let _ = match parameter.structure {
                Some(bytes) => {
                    let ty = format!("struct flexcast_argument_{bytes}");
                    writeln!(text, "\t*({ty} *)((uint64_t *)argbuf + {at}) = va_arg(pa, {ty});")
                }
                None => {
                    let ty = if parameter.is_int { "int" } else { "uint64_t" };
                    writeln!(text, "\t((uint64_t *)argbuf)[{at}] = va_arg(pa, {ty});")
                }
            };
        }
        text.push_str("}\n");
    }
    let _ = write!(
        text,
        "\nstatic void flexcast_must(flexio_status status, const char *what)\n{{\n\
         \tif (status != FLEXIO_STATUS_SUCCESS) {{\n\
         \t\tfprintf(stderr, \"application {app}: %s failed\\n\", what);\n\t\texit(EXIT_FAILURE);\n\t}}\n}}\n\n\
         __attribute__((constructor)) static void {app}__create(void)\n{{\n\
         \tstatic char name[] = \"{app}\", unsigned_[] = \"\";\n\
         \tstruct flexio_app_attr attr = {{ 0 }};\n\n\
         \tattr.app_name = name;\n\
         \tattr.app_ptr = (void *){app}__elf;\n\
         \tattr.app_bsize = (size_t)({app}__elf_end - {app}__elf);\n\
         \tattr.app_sig_sec_name = unsigned_;\n\
         \tflexcast_must(flexio_app_create(&attr, &{app}), \"flexio_app_create\");\n"
    );
    for entry in entries {
        let (name, unpack, bytes) = (&entry.name, unpack(&entry.name), 8 * places(entry).1.max(1));
        let _ = writeln!(
            text,
            "\tflexcast_must(flexio_func_pup_register({app}, \"{name}\", \"{unpack}\", {name}, {bytes}, {name}__pack), \
             \"{name}\");"
        );
    }
    text.push_str("}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_or_refused() {
        let text = device(Path::new("/a b/it's\\here.c"), &[]).unwrap();
        assert_eq!(text, "#include \"/a b/it's\\here.c\"\n");
        let error = device(Path::new("/a/\"b\".c"), &[]).unwrap_err().to_string();
        assert!(error.contains("/a/\"b\".c") && error.contains("rename it"), "{error}");
        let text = host("app", Path::new("/a \"b\"/c\\d.elf"), &[]);
        assert!(text.contains(r#".incbin \"/a \\\"b\\\"/c\\\\d.elf\"\n"#), "{text}");
    }
}
