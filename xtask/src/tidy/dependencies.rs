//! Crates of others, held to deny.toml with what Cargo.lock and cargo metadata say: where they come from, checksums,
//! licences, crates that are there twice. What cargo-deny would say of them, without cargo-deny and without a network.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::semver::{Version, VersionReq};
use cargo_metadata::{Metadata, MetadataCommand};
use serde::Deserialize;

use super::files::{Findings, read};
use crate::{process, status, workspace};

/// Every workspace with a Cargo.lock of its own.
pub(crate) const WORKSPACES: [&str; 2] = ["Cargo.toml", "device/Cargo.toml"];

/// What is read of deny.toml; cargo-deny reads all of it.
#[derive(Deserialize)]
struct Rules {
    graph: Graph,
    advisories: Advisories,
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
struct Advisories {
    ignore: Vec<Ignored>,
}

#[derive(Deserialize)]
struct Ignored {
    id: String,
    reason: String,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
    exceptions: Vec<Exception>,
}

#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    skip: Vec<Skipped>,
}

#[derive(Deserialize)]
struct Skipped {
    /// `name:requirement`.
    #[serde(rename = "crate")]
    spec: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

#[derive(Deserialize)]
struct Lock {
    #[serde(default)]
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: Version,
    source: Option<String>,
    checksum: Option<String>,
}

/// A crate of others that a workspace builds with.
struct Used {
    name: String,
    version: Version,
    license: Option<String>,
}

/// Which entries of deny.toml something needed.
#[derive(Default)]
struct Needed {
    licenses: BTreeSet<String>,
    exceptions: BTreeSet<String>,
    skips: BTreeSet<String>,
}

/// Holds all workspaces to deny.toml.
pub(crate) fn check(root: &Path) -> Result<Findings> {
    let rules: Rules = toml::from_str(&read(&root.join("deny.toml"))?).context("deny.toml")?;
    let mut findings = reasons(&rules);
    let mut needed = Needed::default();
    let mut all_seen = true;
    for manifest in WORKSPACES {
        let lock = Path::new(manifest).with_file_name("Cargo.lock");
        findings.extend(locked(&rules, &lock.display().to_string(), &read(&root.join(&lock))?)?);
        let Some(metadata) = metadata(&rules, &root.join(manifest))? else {
            status::warn(format_args!(
                "skipped: licences and doubled crates of {manifest}, because not all crates are on this machine and \
                 they could not be fetched: cargo fetch --locked --manifest-path {manifest}"
            ));
            all_seen = false;
            continue;
        };
        findings.extend(judge(&rules, manifest, &used(&metadata), &mut needed)?);
    }
    if all_seen {
        findings.extend(unneeded(&rules, &needed));
    }
    Ok(findings)
}

/// What is excused says why.
fn reasons(rules: &Rules) -> Findings {
    let advisories = rules.advisories.ignore.iter().map(|ignored| (&ignored.id, &ignored.reason));
    let skips = rules.bans.skip.iter().map(|skipped| (&skipped.spec, &skipped.reason));
    let without = advisories.chain(skips).filter(|(_, reason)| reason.trim().is_empty());
    without.map(|(what, _)| format!("deny.toml: {what} needs a reason")).collect()
}

/// Packages of a lock file that are not from an allowed registry, or have no checksum.
fn locked(rules: &Rules, file: &str, text: &str) -> Result<Findings> {
    let lock: Lock = toml::from_str(text).with_context(|| file.to_owned())?;
    let mut findings = Findings::new();
    for Locked { name, version, source, checksum } in lock.package {
        // Our own.
        let Some(source) = source else { continue };
        let registry = source.strip_prefix("registry+").unwrap_or_default();
        if !rules.sources.allow_registry.iter().any(|allowed| allowed == registry) {
            let allowed = rules.sources.allow_registry.join(", ");
            findings.push(format!("{file}: {name} {version} is from {source}; allowed: {allowed}"));
        } else if !checksum.is_some_and(|sum| sum.len() == 64 && sum.bytes().all(|digit| digit.is_ascii_hexdigit())) {
            findings.push(format!("{file}: {name} {version} has no SHA-256 checksum; cargo update writes it"));
        }
    }
    Ok(findings)
}

/// Metadata of all that a workspace may build with; none where crates are missing and cannot be fetched.
///
/// # Errors
/// Cargo.lock does not fit the manifests.
fn metadata(rules: &Rules, manifest: &Path) -> Result<Option<Metadata>> {
    let run = |network: bool| -> Result<Output> {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["metadata", "--format-version=1", "--locked", "--all-features", "--manifest-path"]).arg(manifest);
        command.args(rules.graph.targets.iter().flat_map(|target| ["--filter-platform", target]));
        command.args((!network).then_some("--offline")).current_dir(workspace::root());
        command.output().with_context(|| process::line(&command))
    };
    let mut output = run(false)?;
    if !output.status.success() {
        output = run(true)?;
    }
    if output.status.success() {
        return Ok(Some(MetadataCommand::parse(String::from_utf8(output.stdout)?)?));
    }
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("--locked") {
        bail!("{}: {}", manifest.display(), error.trim());
    }
    Ok(None)
}

fn used(metadata: &Metadata) -> Vec<Used> {
    let others = metadata.packages.iter().filter(|package| package.source.is_some());
    others
        .map(|package| Used {
            name: package.name.to_string(),
            version: package.version.clone(),
            license: package.license.clone(),
        })
        .collect()
}

/// Licences that are not allowed, and crates that are there twice without an excuse.
fn judge(rules: &Rules, manifest: &str, used: &[Used], needed: &mut Needed) -> Result<Findings> {
    let mut findings = Findings::new();
    let skips: Vec<(&str, &str, VersionReq)> = rules
        .bans
        .skip
        .iter()
        .map(|skipped| {
            let (name, version) = skipped.spec.split_once(':').unwrap_or((&skipped.spec, "*"));
            Ok((skipped.spec.as_str(), name, VersionReq::parse(version).with_context(|| skipped.spec.clone())?))
        })
        .collect::<Result<_>>()?;
    let mut versions: BTreeMap<&str, Vec<&Version>> = BTreeMap::new();
    for package in used {
        findings.extend(license(rules, package, needed).map(|text| format!("{manifest}: {text}")));
        let fits = |(_, name, versions): &&(&str, &str, VersionReq)| {
            *name == package.name && versions.matches(&package.version)
        };
        match skips.iter().find(fits) {
            Some((spec, ..)) => drop(needed.skips.insert((*spec).to_owned())),
            None => versions.entry(&package.name).or_default().push(&package.version),
        }
    }
    for (name, versions) in versions.into_iter().filter(|(_, versions)| versions.len() > 1) {
        let list = versions.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        findings.push(format!(
            "{manifest}: {name} is there in versions {list}; use one, or excuse one in deny.toml with the reason \
             (cargo tree --invert {name}@{} shows who needs it)",
            versions[0]
        ));
    }
    Ok(findings)
}

/// Why the licence of a crate is none that is allowed.
fn license(rules: &Rules, package: &Used, needed: &mut Needed) -> Option<String> {
    let Used { name, version, license } = package;
    let Some(text) = license else { return Some(format!("{name} {version} names no licence")) };
    let expression = match spdx::Expression::parse_mode(text, spdx::ParseMode::LAX) {
        Ok(expression) => expression,
        Err(error) => return Some(format!("{name} {version}: licence `{text}`: {}", error.reason)),
    };
    let exception = rules.licenses.exceptions.iter().find(|exception| exception.name == *name);
    let own = exception.map(|exception| exception.allow.as_slice()).unwrap_or_default();
    let listed = |list: &[String], requirement: &str| list.iter().any(|allowed| allowed == requirement);
    let allowed = expression.evaluate(|requirement| {
        let requirement = requirement.to_string();
        listed(&rules.licenses.allow, &requirement) || listed(own, &requirement)
    });
    for requirement in expression.requirements().map(|requirement| requirement.req.to_string()) {
        if listed(&rules.licenses.allow, &requirement) {
            needed.licenses.insert(requirement);
        } else if listed(own, &requirement) {
            needed.exceptions.insert(name.clone());
        }
    }
    (!allowed).then(|| format!("{name} {version}: licence `{text}` is none that deny.toml allows"))
}

/// Entries of deny.toml that nothing needs any more.
fn unneeded(rules: &Rules, needed: &Needed) -> Findings {
    let licenses = rules.licenses.allow.iter().filter(|license| !needed.licenses.contains(*license));
    let exceptions = rules.licenses.exceptions.iter().map(|exception| &exception.name);
    let exceptions = exceptions.filter(|name| !needed.exceptions.contains(*name));
    let skips = rules.bans.skip.iter().map(|skipped| &skipped.spec).filter(|spec| !needed.skips.contains(*spec));
    let entries = licenses.chain(exceptions).chain(skips);
    entries.map(|entry| format!("deny.toml: no crate needs the entry `{entry}` any more; take it out")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"
        graph = { targets = ["x"] }
        advisories = { ignore = [{ id = "A-1", reason = "none" }] }
        licenses = { allow = ["MIT", "Zlib"], exceptions = [{ crate = "weak", allow = ["MPL-2.0"] }] }
        bans = { skip = [{ crate = "old:1", reason = "of c" }, { crate = "gone:1", reason = " " }] }
        sources = { allow-registry = ["https://registry"] }
    "#;

    fn rules() -> Rules {
        toml::from_str(RULES).expect("rules")
    }

    fn crates(list: &[(&str, &str, &str)]) -> Vec<Used> {
        let used = |(name, version, license): &(&str, &str, &str)| Used {
            name: (*name).to_owned(),
            version: version.parse().expect("version"),
            license: (!license.is_empty()).then(|| (*license).to_owned()),
        };
        list.iter().map(used).collect()
    }

    #[test]
    fn sources_and_checksums_are_read_from_the_lock_file() {
        let sum = "ab".repeat(32);
        let lock = format!(
            "[[package]]\nname = 'own'\nversion = '0.1.0'\n\
             [[package]]\nname = 'good'\nversion = '1.0.0'\nsource = 'registry+https://registry'\nchecksum = '{sum}'\n\
             [[package]]\nname = 'bare'\nversion = '1.0.0'\nsource = 'registry+https://registry'\n\
             [[package]]\nname = 'short'\nversion = '1.0.0'\nsource = 'registry+https://registry'\nchecksum = 'ab'\n\
             [[package]]\nname = 'git'\nversion = '1.0.0'\nsource = 'git+https://registry/git'\n\
             [[package]]\nname = 'other'\nversion = '1.0.0'\nsource = 'registry+https://elsewhere'\nchecksum = \
             '{sum}'\n"
        );
        let findings = locked(&rules(), "Cargo.lock", &lock).expect("lock file");
        let names: Vec<&str> = findings.iter().filter_map(|text| text.split(' ').nth(1)).collect();
        assert_eq!(names, ["bare", "short", "git", "other"], "{findings:?}");
    }

    #[test]
    fn licences_are_expressions() {
        let judged = |license: &str, name: &str| {
            judge(&rules(), "Cargo.toml", &crates(&[(name, "1.0.0", license)]), &mut Needed::default())
                .expect("judged")
                .len()
        };
        for good in ["MIT", "MIT OR GPL-3.0-only", "GPL-3.0-only/MIT", "MIT AND Zlib", "(BSD-2-Clause OR MIT) AND Zlib"]
        {
            assert_eq!(judged(good, "any"), 0, "{good}");
        }
        for bad in ["", "GPL-3.0-only", "MIT AND GPL-3.0-only", "MIT OR", "MPL-2.0"] {
            assert_eq!(judged(bad, "any"), 1, "{bad}");
        }
        assert_eq!(judged("MPL-2.0", "weak"), 0, "an exception for it alone");
    }

    #[test]
    fn a_crate_is_there_once_or_excused_and_excuses_do_not_outlive_their_crate() {
        let mut needed = Needed::default();
        let used = crates(&[
            ("old", "1.2.3", "MIT"),
            ("old", "2.0.0", "MIT"),
            ("new", "0.3.1", "MIT"),
            ("new", "0.4.0", "MIT"),
        ]);
        let findings = judge(&rules(), "Cargo.toml", &used, &mut needed).expect("judged");
        assert_eq!(findings.len(), 1);
        assert!(findings[0].contains("new is there in versions 0.3.1, 0.4.0"), "{findings:?}");
        let stale = unneeded(&rules(), &needed).join("; ");
        assert!(["`Zlib`", "`weak`", "`gone:1`"].iter().all(|entry| stale.contains(entry)), "{stale}");
        assert!(!stale.contains("old"), "{stale}");
        assert_eq!(reasons(&rules()), ["deny.toml: gone:1 needs a reason"]);
    }
}
