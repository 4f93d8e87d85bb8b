//! Rules about calls: stacks are bounded, event handlers do not panic.

use super::{Outcome, Policy, verdict};
use crate::callgraph::{CallGraph, StackBound};
use crate::{Entry, EntryKind, Image};

pub(super) fn stack(image: &Image, graph: &CallGraph, policy: &Policy) -> Outcome {
    let limit_bytes = policy.stack_bytes;
    let mut findings = Vec::new();
    let mut known = Vec::new();
    for entry in image.entries() {
        let mut needs = vec![(entry.name.clone(), graph.stack_bound(entry.addr))];
        if entry.unpack != 0 {
            needs.push((format!("{} (unpack)", entry.name), unpack_bound(graph, entry)));
        }
        for (name, bound) in needs {
            let Some(bound) = bound else {
                findings.push(format!("{name}: no function symbol at its address"));
                continue;
            };
            let declared = policy.declared_stacks.get(&entry.name).filter(|_| !bound.unknown.is_empty());
            let bytes = declared.map_or(bound.bytes, |declared| declared.bytes);
            let reasons = bound.unknown.join("; ");
            if bound.bytes > limit_bytes {
                let deepest = bound.deepest.join(" → ");
                findings.push(format!("{name} takes {} of {limit_bytes} bytes: {deepest}", bound.bytes));
            } else if bytes > limit_bytes {
                findings.push(format!("{name} is declared to take {bytes} of {limit_bytes} bytes"));
            } else if bytes < bound.bytes {
                findings.push(format!("{name} is declared to take {bytes} bytes and takes at least {}", bound.bytes));
            } else if let Some(declared) = declared {
                known.push(format!("{name} {bytes} B as declared ({})", declared.reason));
            } else if bound.unknown.is_empty() {
                known.push(format!("{name} {bytes} B"));
            } else {
                findings.push(format!(
                    "{name}: at least {bytes} bytes, {reasons}; give a bound in image.toml: \
                     [stack.{}] with bytes and reason",
                    entry.name
                ));
            }
        }
    }
    let declared = policy.declared_stacks.keys();
    let nobody = declared.filter(|name| image.entry_named(name).is_err());
    findings.extend(nobody.map(|name| format!("image.toml has [stack.{name}], and the image no such entry")));
    verdict(findings, || format!("{} of {limit_bytes} B per thread", known.join(", ")))
}

/// An unpack function calls what it is given: by the calling convention of RPCs that is the entry itself.
fn unpack_bound(graph: &CallGraph, entry: &Entry) -> Option<StackBound> {
    let mut unpack = graph.stack_bound(entry.unpack)?;
    let name = &graph.function_at(entry.unpack)?.name;
    let inner = graph.stack_bound(entry.addr)?;
    unpack.unknown.retain(|reason| !reason.contains(&format!("through a register in {name} at ")));
    unpack.unknown.extend(inner.unknown);
    unpack.deepest.extend(inner.deepest);
    unpack.bytes = unpack.bytes.saturating_add(inner.bytes);
    Some(unpack)
}

/// Names by which core and the panic handler show in a symbol table.
fn is_panic(name: &str) -> bool {
    ["panicking", "rust_begin_unwind", "panic_fmt", "panic_handler"].iter().any(|part| name.contains(part))
}

pub(super) fn panics(image: &Image, graph: &CallGraph) -> Outcome {
    let mut findings = Vec::new();
    let mut handlers = 0;
    for entry in image.entries().iter().filter(|entry| entry.kind == EntryKind::EventHandler) {
        handlers += 1;
        if let Some(path) = graph.path(entry.addr, |function| is_panic(&function.name)) {
            let names: Vec<&str> = path.iter().map(|function| function.name.as_str()).collect();
            findings.push(names.join(" → "));
        }
        // What is behind a register may panic.
        let hidden = graph.unknown_below(entry.addr).into_iter().filter(|reason| reason.contains("through a register"));
        findings.extend(hidden.map(|reason| format!("{}: {reason}", entry.name)));
    }
    verdict(findings, || format!("{handlers} handlers reach none"))
}
