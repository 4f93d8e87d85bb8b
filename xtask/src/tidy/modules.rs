//! Module tree of a crate, as far as its source text shows, and the paths by which its modules name one another.
//!
//! Read from tokens, so comments and strings are none of it and arguments of macros are. Code for tests
//! (`#[cfg(test)]`) is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree, token_stream};

/// Segments of a path.
type Segments = Vec<String>;

/// Re-exports of re-exports that are followed; more are a loop.
const MOST_STEPS: usize = 16;

/// One module: of a file, or inline in one.
#[derive(Default)]
struct Module {
    /// Index of its file.
    file: usize,
    parent: usize,
    children: BTreeMap<String, usize>,
    /// Names of the items defined in it.
    items: BTreeSet<String>,
    /// Names that `use` brings in, and what they stand for.
    imports: BTreeMap<String, Segments>,
    /// Modules that `use` brings in whole.
    globs: Vec<Segments>,
    /// Paths that its code names, those of `use` included.
    paths: BTreeSet<Segments>,
    /// Those of `pub use`.
    passed_on: BTreeSet<Segments>,
}

/// The modules of one crate; the first is its root.
pub(super) struct Modules {
    modules: Vec<Module>,
    files: Vec<PathBuf>,
}

/// How a source file is read; `None` where there is none.
pub(super) type Reader<'a> = &'a dyn Fn(&Path) -> Option<String>;

impl Modules {
    /// The crate of a root file. A file that is no Rust, and one that is not there, has no modules and names nothing.
    pub(super) fn read(root: &Path, reader: Reader<'_>) -> Self {
        let mut crate_ = Self { modules: Vec::new(), files: Vec::new() };
        let folder = root.parent().unwrap_or(Path::new("")).to_owned();
        crate_.add_file(root, folder, 0, reader);
        crate_
    }

    /// Files in the order in which they were found.
    pub(super) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// For each file, the other files whose items it names. A name that a module passes on (`pub use`) counts for the
    /// file that defines it. A module's declaration of a child (`mod x;`) does not count, nor that it passes on names
    /// of those below it.
    pub(super) fn imports(&self) -> Vec<BTreeSet<usize>> {
        let mut edges = vec![BTreeSet::new(); self.files.len()];
        for (index, module) in self.modules.iter().enumerate() {
            let named = module.paths.iter().filter_map(|path| self.resolve(index, path, 0));
            let passed_on = module.passed_on.iter().filter_map(|path| self.resolve(index, path, 0));
            let targets = named.chain(passed_on.filter(|target| !self.is_below(*target, index)));
            let files = targets.map(|target| self.modules[target].file).filter(|file| *file != module.file);
            edges[module.file].extend(files);
        }
        edges
    }

    fn is_below(&self, module: usize, ancestor: usize) -> bool {
        let up = |module: &usize| Some(self.modules[*module].parent).filter(|parent| parent < module);
        std::iter::successors(Some(module), up).any(|at| at == ancestor)
    }

    fn add_file(&mut self, path: &Path, folder: PathBuf, parent: usize, reader: Reader<'_>) -> Option<usize> {
        let tokens: TokenStream = reader(path)?.parse().ok()?;
        self.files.push(path.to_owned());
        let module = self.add_module(self.files.len() - 1, parent);
        self.items(module, tokens, &folder, reader);
        Some(module)
    }

    fn add_module(&mut self, file: usize, parent: usize) -> usize {
        self.modules.push(Module { file, parent, ..Module::default() });
        self.modules.len() - 1
    }

    /// Reads what stands in a module. `folder` is where the files of its children are.
    fn items(&mut self, module: usize, tokens: TokenStream, folder: &Path, reader: Reader<'_>) {
        let mut tokens = tokens.into_iter().peekable();
        let mut path_attribute = None;
        while let Some(token) = tokens.next() {
            match &token {
                TokenTree::Ident(word) if word == "pub" => {
                    // Visibility; what it is of comes next.
                    tokens.next_if(is_group);
                    if tokens.next_if(|token| matches!(token, TokenTree::Ident(word) if word == "use")).is_some() {
                        self.import(module, &[], use_tree(&mut tokens), true);
                    }
                    continue;
                }
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    if let Some(TokenTree::Group(attribute)) = tokens.next_if(is_group) {
                        if is_for_tests(&attribute) {
                            skip_item(&mut tokens);
                        }
                        path_attribute = named_path(&attribute).or(path_attribute);
                    }
                    continue;
                }
                TokenTree::Ident(word) if word == "mod" => {
                    let Some(TokenTree::Ident(name)) = tokens.next() else { continue };
                    let name = name.to_string();
                    let child = match tokens.next() {
                        Some(TokenTree::Group(body)) => {
                            let child = self.add_module(self.modules[module].file, module);
                            self.items(child, body.stream(), &folder.join(&name), reader);
                            Some(child)
                        }
                        _ => self.add_child(module, &name, path_attribute.take(), folder, reader),
                    };
                    self.modules[module].children.extend(child.map(|child| (name, child)));
                }
                TokenTree::Ident(word) if defines(&word.to_string()) => {
                    if let Some(TokenTree::Ident(name)) = tokens.peek() {
                        self.modules[module].items.insert(name.to_string());
                    }
                }
                _ => self.code(module, token, &mut tokens),
            }
            path_attribute = None;
        }
    }

    fn add_child(
        &mut self,
        module: usize,
        name: &str,
        path: Option<String>,
        folder: &Path,
        reader: Reader<'_>,
    ) -> Option<usize> {
        if let Some(path) = path {
            let own = self.files[self.modules[module].file].parent()?.join(path);
            let folder = own.parent()?.to_owned();
            return self.add_file(&own, folder, module, reader);
        }
        let below = folder.join(name);
        let child = self.add_file(&folder.join(format!("{name}.rs")), below.clone(), module, reader);
        child.or_else(|| self.add_file(&below.join("mod.rs"), below, module, reader))
    }

    /// Reads one token of code, and what belongs to it: an import, a path, or what is between brackets.
    fn code(&mut self, module: usize, token: TokenTree, rest: &mut Peekable<token_stream::IntoIter>) {
        match token {
            TokenTree::Group(group) => {
                let mut tokens = group.stream().into_iter().peekable();
                while let Some(token) = tokens.next() {
                    self.code(module, token, &mut tokens);
                }
            }
            TokenTree::Ident(word) if word == "use" => {
                self.import(module, &[], use_tree(rest), false);
            }
            TokenTree::Ident(word) => {
                let mut path = vec![word.to_string()];
                while skip_colons(rest) {
                    match rest.next_if(|token| matches!(token, TokenTree::Ident(_))) {
                        Some(segment) => path.push(segment.to_string()),
                        None => break,
                    }
                }
                if path.len() > 1 {
                    self.modules[module].paths.insert(path);
                }
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }

    /// Reads the tree of a `use`, behind `prefix`; `is_public` that of a `pub use`.
    fn import(&mut self, module: usize, prefix: &[String], tree: TokenStream, is_public: bool) {
        let tokens: Vec<TokenTree> = tree.into_iter().collect();
        for branch in tokens.split(|token| is_punct(token, ',')) {
            let mut path = prefix.to_vec();
            let mut name = None;
            let mut tokens = branch.iter();
            while let Some(token) = tokens.next() {
                match token {
                    TokenTree::Ident(word) if word == "as" => name = tokens.next().map(ToString::to_string),
                    TokenTree::Ident(word) => path.push(word.to_string()),
                    TokenTree::Group(group) => {
                        self.import(module, &path, group.stream(), is_public);
                        path.clear();
                    }
                    TokenTree::Punct(_) if is_punct(token, '*') => {
                        self.modules[module].globs.push(path.clone());
                        name = Some("_".to_owned());
                    }
                    TokenTree::Punct(_) | TokenTree::Literal(_) => {}
                }
            }
            if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                path.pop();
            }
            let Some(last) = path.last().cloned() else { continue };
            let module = &mut self.modules[module];
            module
                .imports
                .extend(Some(name.unwrap_or(last)).filter(|name| name != "_").map(|name| (name, path.clone())));
            if is_public {
                module.passed_on.insert(path);
            } else {
                module.paths.insert(path);
            }
        }
    }

    /// The module that defines what a path in `module` names; `None` if that is outside the crate.
    fn resolve(&self, module: usize, path: &[String], steps: usize) -> Option<usize> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => 0,
            "self" => module,
            "super" => self.modules[module].parent,
            name => {
                // Of what is in scope only modules matter: an item that was imported has been counted with its import.
                let here = &self.modules[module];
                let child = here.children.get(name).copied();
                child.or_else(|| self.resolve(module, here.imports.get(name).filter(|to| *to != path)?, steps + 1))?
            }
        };
        while let Some((segment, behind)) = rest.split_first() {
            at = match segment.as_str() {
                "super" => self.modules[at].parent,
                name => match self.modules[at].children.get(name) {
                    Some(child) => *child,
                    None => return Some(self.definition(at, rest, steps)),
                },
            };
            rest = behind;
        }
        Some(at)
    }

    /// The module that defines what `module` knows by the first segment of `path`: itself, or one that it passes the
    /// name on from.
    fn definition(&self, module: usize, path: &[String], steps: usize) -> usize {
        let here = &self.modules[module];
        let Some(name) = path.first().filter(|name| steps < MOST_STEPS && !here.items.contains(*name)) else {
            return module;
        };
        if let Some(import) = here.imports.get(name) {
            let whole: Segments = import.iter().chain(&path[1..]).cloned().collect();
            return self.resolve(module, &whole, steps + 1).unwrap_or(module);
        }
        let globbed = here.globs.iter().filter_map(|glob| self.resolve(module, glob, steps + 1));
        let mut known = globbed.filter(|from| {
            let from = &self.modules[*from];
            from.items.contains(name) || from.imports.contains_key(name) || from.children.contains_key(name)
        });
        known.next().map_or(module, |from| {
            let child = self.modules[from].children.get(name).copied();
            child.unwrap_or_else(|| self.definition(from, path, steps + 1))
        })
    }
}

/// The tree of a `use`, up to its semicolon.
fn use_tree(tokens: &mut Peekable<token_stream::IntoIter>) -> TokenStream {
    std::iter::from_fn(|| tokens.next_if(|token| !is_punct(token, ';'))).collect()
}

fn is_group(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(_))
}

fn is_punct(token: &TokenTree, char: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == char)
}

/// Takes `::`, if it is next.
fn skip_colons(tokens: &mut Peekable<token_stream::IntoIter>) -> bool {
    let joint = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':' && punct.spacing() == Spacing::Joint);
    tokens.next_if(joint).is_some() && tokens.next_if(|token| is_punct(token, ':')).is_some()
}

/// Whether the word before a name makes it that of an item.
fn defines(word: &str) -> bool {
    matches!(word, "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static")
}

/// Whether an attribute leaves its item out of everything but tests.
fn is_for_tests(attribute: &Group) -> bool {
    let text: String = attribute.stream().to_string().split_whitespace().collect();
    text == "cfg(test)" || text.starts_with("cfg(all(test,")
}

/// The file that a `path` attribute names.
fn named_path(attribute: &Group) -> Option<String> {
    let text = attribute.stream().to_string();
    Some(text.strip_prefix("path")?.trim_start().strip_prefix('=')?.trim().trim_matches('"').to_owned())
}

/// Passes over an item: up to its semicolon, or its body.
fn skip_item(tokens: &mut Peekable<token_stream::IntoIter>) {
    for token in tokens {
        let body = matches!(&token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
        if body || is_punct(&token, ';') {
            return;
        }
    }
}
