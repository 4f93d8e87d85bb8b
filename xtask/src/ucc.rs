use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::toolchain::Toolchain;
use crate::workspace::RELEASE;
use crate::{emu_libs, install, process, status, workspace};

/// Build the transport layer of UCC, adapters/ucc, against the tree of a UCC release, and put it where that UCC
/// searches for it.
#[derive(clap::Args)]
pub(crate) struct Ucc {
    /// Source tree of UCC that was configured, built and installed.
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    /// Where UCC was installed [default: the prefix that the tree was configured with].
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// Cargo profile.
    #[arg(long, default_value = RELEASE)]
    profile: String,
    /// What the firmware is for: a file of toolchains/.
    #[arg(long, default_value = "emu")]
    toolchain: String,
    /// Run UCC's own test among processes of this machine, under Open MPI, and say which layer carried what.
    #[arg(long)]
    test: bool,
    /// Processes of the test: UCC never sleeps, so no more than there are processors.
    #[arg(long, default_value_t = 2, requires = "test")]
    ranks: u32,
    /// Options of `ucc_test_mpi`, in place of those of a test of minutes.
    #[arg(long, value_name = "OPTIONS", requires = "test", allow_hyphen_values = true)]
    options: Option<String>,
    /// Seed of the random operations; else a fresh one, which is printed.
    #[arg(long, requires = "test")]
    seed: Option<u64>,
}

/// What to do where there is no UCC.
const NEEDED: &str = "\
the transport layer is compiled against UCC's internal headers, which no package has: give --source, the tree of a UCC \
    release that was configured, built and installed.
  where from:  https://github.com/openucx/ucc, a tag; 1.3 to 1.9 have what the layer uses; 1.3.0 builds with Debian \
    12's UCX, later ones need a later UCX
  packages:    apt-get install gcc g++ make autoconf automake libtool libucx-dev; for --test also libopenmpi-dev \
    openmpi-bin
  build:       ./autogen.sh && ./configure --prefix=PREFIX --with-ucx=/usr --with-mpi && make -j install
  then:        cargo xtask ucc --source DIR --test";

/// The layer's file, by whose name UCC finds it.
const LAYER: &str = "libucc_tl_flexcast.so";

/// Bytes from and to, and the variants: in place or not, persistent or not, every root. One-sided operations are not
/// the layer's.
const OPTIONS: &str = "--msgsize 8:65536:8 --inplace 2 --persistent 2 --root all --onesided 0 \
    --dtypes int32,float32,float64_complex --ops sum,max,avg --teams world,reverse,half";

/// As UCC's test and log name them.
const COLLECTIVES: [&str; 14] = [
    "Allgather",
    "Allgatherv",
    "Allreduce",
    "Alltoall",
    "Alltoallv",
    "Barrier",
    "Bcast",
    "Gather",
    "Gatherv",
    "Reduce",
    "Reduce_scatter",
    "Reduce_scatterv",
    "Scatter",
    "Scatterv",
];

impl Ucc {
    pub(crate) fn run(&self) -> Result<()> {
        let Some(source) = &self.source else { bail!("{NEEDED}") };
        let tree = Tree::find(source, self.prefix.as_deref())?;
        let compiler = emu_libs::compiler(LAYER, process::find)?;
        install::install(&tree.prefix, &self.profile, &Toolchain::load(&self.toolchain)?)?;
        status::say("Building", format_args!("{LAYER} for UCC {}", tree.version));
        let layer = tree.prefix.join("lib/ucc").join(LAYER);
        process::run(&mut tree.compile(&compiler, &layer)?)?;
        status::say("Installed", layer.display());
        if self.test { self.test(&tree) } else { status::print(layer.display()) }
    }

    fn test(&self, tree: &Tree) -> Result<()> {
        let program = tree.prefix.join("bin/ucc_test_mpi");
        if !program.is_file() {
            bail!("{} is not there: configure UCC with --with-mpi, `make install`, and repeat", program.display());
        }
        let [corners, mix] = [tree.own_test("corners")?, tree.own_test("mix")?];
        let mut command = tree.among(self.ranks, &program)?;
        command.args(self.options.as_deref().unwrap_or(OPTIONS).split_whitespace());
        let (text, ended) = shown(&mut command)?;
        let totals = Totals::of(&text)?;

        let mut own = tree.among(CORNERS_RANKS, &corners)?;
        let (text, own_ended) = shown(&mut own)?;
        let well = text.matches("all as promised").count();
        let carried = text.lines().filter(|line| line.contains("carried: Allgatherv 2, Reduce_scatter 1;")).count();

        let seed = self.seed.unwrap_or_else(fresh_seed);
        // What has been counted is shown even if one of them fails.
        let mixed = MIXES.map(|(operations, threads)| self.mix(tree, &mix, [seed, operations, threads]));
        let right: u64 =
            MIXES.iter().zip(&mixed).filter(|(_, ended)| ended.is_ok()).map(|((operations, _), _)| operations).sum();

        status::print(format_args!(
            "UCC {}, {} ranks, measured: {totals}; {well} of {CORNERS_RANKS} ranks of the layer's own test passed; \
             random operations with seed {seed}: {right} right",
            tree.version, self.ranks,
        ))?;
        for ended in mixed {
            ended?;
        }
        if !ended.success() {
            bail!("{ended}: {}", process::line(&command));
        }
        totals.check(self.options.is_none())?;
        let all = CORNERS_RANKS as usize;
        if !own_ended.success() || (well, carried) != (all, all) {
            bail!("{own_ended}, {well} ranks passed, {carried} by this layer: {}", process::line(&own));
        }
        Ok(())
    }

    /// Random operations on one team, with nothing between them, all carried by the layer.
    fn mix(&self, tree: &Tree, program: &Path, numbers: [u64; 3]) -> Result<()> {
        let mut command = tree.among(self.ranks, program)?;
        command.args(numbers.map(|number| number.to_string()));
        let (text, ended) = shown(&mut command)?;
        let all = self.ranks as usize;
        let well = text.matches("all as promised").count();
        let carried = text.lines().filter(|line| line.contains(CARRIED) && line.contains(ALL_CARRIED)).count();
        if !ended.success() || (well, carried) != (all, all) {
            bail!("{ended}, {well} ranks passed, {carried} left nothing to other layers: {}", process::line(&command));
        }
        Ok(())
    }
}

/// Of the layer's last line about a team, if it carried everything.
const ALL_CARRIED: &str = "; left to other layers: 0; failed: 0";

/// Random operations of adapters/ucc/tests/mix.c: how many, and threads of each rank that post them in turn.
const MIXES: [(u64, u64); 2] = [(100_000, 1), (20_000, 4)];

fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| since.as_nanos() as u64)
}

/// Ranks of adapters/ucc/tests/corners.c.
const CORNERS_RANKS: u32 = 2;

/// Seconds after which a test is ended.
const LIMIT: &str = "600";

/// Runs a command, shows what it prints, and returns its stdout.
fn shown(command: &mut Command) -> Result<(String, ExitStatus)> {
    status::say("Running", process::line(command));
    let output = command.stderr(Stdio::inherit()).output().with_context(|| process::line(command))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    status::line(text.trim_end());
    Ok((text, output.status))
}

/// A UCC release, as tree and as installed.
struct Tree {
    source: PathBuf,
    prefix: PathBuf,
    version: String,
    /// Variables of its Makefile.
    variables: BTreeMap<String, String>,
}

impl Tree {
    fn find(source: &Path, prefix: Option<&Path>) -> Result<Self> {
        let source = std::path::absolute(source)?;
        let configured = source.join("src/Makefile");
        if !configured.is_file() || !source.join("config.h").is_file() {
            bail!("{} is no UCC tree that was configured in its own folder\n{NEEDED}", source.display());
        }
        let variables = variables(&read(&configured)?);
        let prefix = match (prefix, variables.get("prefix")) {
            (Some(prefix), _) => std::path::absolute(prefix)?,
            (None, Some(prefix)) => PathBuf::from(prefix),
            (None, None) => bail!("{} names no prefix: give --prefix", configured.display()),
        };
        let version = version_in_headers(&source.join("src"))?;
        let library = prefix.join("lib/libucc.so");
        if !library.exists() {
            bail!("{} is not there: `make install` in {}, or give --prefix", library.display(), source.display());
        }
        let installed = version_in_headers(&prefix.join("include"))?;
        if installed != version {
            bail!(
                "{} is UCC {version}, and {} has {installed}: internal headers differ between releases, give the tree \
                 that was installed",
                source.display(),
                prefix.display()
            );
        }
        Ok(Self { source, prefix, version, variables })
    }

    fn compile(&self, compiler: &Path, layer: &Path) -> Result<Command> {
        let own = workspace::root().join("adapters/ucc");
        let lib = self.prefix.join("lib");
        let mut command = Command::new(compiler);
        command.args(["-shared", "-o"]).arg(layer);
        // What a release has changed is to be seen here, and not by a program that loads the layer.
        command.args(["-std=gnu11", "-O2", "-g", "-fPIC", "-DNDEBUG", "-DHAVE_CONFIG_H", "-Wall", "-Werror"]);
        // For UCC's headers.
        command.args(["-Wno-sign-compare", "-Wno-deprecated-declarations", "-Wno-unused-function"]);
        for folder in [self.source.clone(), self.source.join("src"), self.prefix.join("include")] {
            command.arg("-I").arg(folder);
        }
        command.args(self.words("UCS_CPPFLAGS")).args(self.words("UCX_CPPFLAGS"));
        let mut sources = Vec::new();
        for entry in std::fs::read_dir(&own).with_context(|| format!("reading {}", own.display()))? {
            sources.extend(Some(entry?.path()).filter(|path| path.extension().is_some_and(|end| end == "c")));
        }
        sources.sort();
        command.args(sources).arg("-L").arg(&lib);
        // libflexcast lies next to libucc, one folder above the layer.
        command.args(["-Wl,-z,defs", "-Wl,-rpath,$ORIGIN/..", "-lflexcast", "-lucc"]);
        command.args(self.words("UCS_LDFLAGS")).args(self.words("UCS_LIBADD"));
        Ok(command)
    }

    /// Builds a test of the layer's own, adapters/ucc/tests/NAME.c.
    fn own_test(&self, name: &str) -> Result<PathBuf> {
        let Some(compiler) = process::find("mpicc") else {
            bail!("mpicc is not on the search path: install Open MPI (Debian: `apt-get install libopenmpi-dev`)");
        };
        let folder = workspace::root().join("target/ucc");
        std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let program = folder.join(name);
        let mut command = Command::new(compiler);
        command.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
        command.arg(workspace::root().join("adapters/ucc/tests").join(format!("{name}.c"))).arg("-pthread");
        command.arg("-I").arg(self.prefix.join("include")).arg("-L").arg(self.prefix.join("lib")).arg("-lucc");
        process::run(&mut command)?;
        Ok(program)
    }

    /// So many processes of a program, with this layer before UCC's own.
    fn among(&self, ranks: u32, program: &Path) -> Result<Command> {
        let Some(mpirun) = process::find("mpirun") else {
            bail!("mpirun is not on the search path: install Open MPI (Debian: `apt-get install openmpi-bin`)");
        };
        let mut command = Command::new(mpirun);
        command.args(["--oversubscribe", "--timeout", LIMIT, "-np", &ranks.to_string()]).arg(program);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("LD_LIBRARY_PATH", self.prefix.join("lib"));
        command.env("UCC_TLS", "flexcast,self,ucp").env("UCC_TL_FLEXCAST_LOG_LEVEL", "info");
        // One computer: its own interface, unless others are named.
        for (name, value) in [("UCC_TL_FLEXCAST_DATAPATH", "udp"), ("UCC_TL_FLEXCAST_INTERFACE", "lo")] {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        Ok(command)
    }

    fn words(&self, variable: &str) -> impl Iterator<Item = &str> {
        self.variables.get(variable).map(String::as_str).unwrap_or_default().split_whitespace()
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// `NAME = value` of a Makefile that configure wrote.
fn variables(makefile: &str) -> BTreeMap<String, String> {
    let assignment =
        |line: &str| line.split_once(" = ").map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
    makefile.lines().filter(|line| !line.starts_with(['\t', '#'])).filter_map(assignment).collect()
}

/// The release that the headers below a folder are of.
fn version_in_headers(include: &Path) -> Result<String> {
    let header = include.join("ucc/api/ucc_version.h");
    version_in(&read(&header)?).with_context(|| format!("{} names no UCC_VERSION_STRING", header.display()))
}

fn version_in(header: &str) -> Option<String> {
    let line = header.lines().find(|line| line.contains("UCC_VERSION_STRING"))?;
    Some(line.split('"').nth(1)?.to_owned())
}

/// What the layer's last line about a team has.
const CARRIED: &str = ": carried: ";

/// What UCC's test and the layer's log say.
#[derive(Debug, PartialEq, Eq)]
struct Totals {
    tests: u64,
    passed: u64,
    failed: u64,
    skipped: u64,
    /// By collective, over all ranks.
    carried: BTreeMap<String, u64>,
    left: u64,
}

impl Totals {
    fn of(text: &str) -> Result<Self> {
        let mut totals = Self { tests: 0, passed: 0, failed: 0, skipped: 0, carried: BTreeMap::new(), left: 0 };
        for line in text.lines() {
            if let Some((_, counts)) = line.split_once(CARRIED) {
                totals.add(counts).with_context(|| format!("the layer's line cannot be read: {line}"))?;
            }
        }
        let report = text.split_once("UCC MPI TEST REPORT").context("UCC's test ended without its report")?.1;
        for line in report.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [name, counts @ ..] = words.as_slice()
                && COLLECTIVES.contains(name)
                && let Ok([tests, passed, failed, skipped]) = <[u64; 4]>::try_from(numbers(counts))
            {
                totals.tests += tests;
                totals.passed += passed;
                totals.failed += failed;
                totals.skipped += skipped;
            }
        }
        Ok(totals)
    }

    /// `Bcast 12, Barrier 3; left to other layers: 4; failed: 0`
    fn add(&mut self, counts: &str) -> Option<()> {
        let (carried, rest) = counts.split_once("; left to other layers: ")?;
        for one in carried.split(", ").filter(|one| *one != "none") {
            let (name, count) = one.split_once(' ')?;
            *self.carried.entry(name.to_owned()).or_default() += count.parse::<u64>().ok()?;
        }
        self.left += rest.split(';').next()?.parse::<u64>().ok()?;
        Some(())
    }

    /// Fails where a test failed, or the layer carried nothing of a collective that it takes.
    fn check(&self, all: bool) -> Result<()> {
        let missing: Vec<&str> = COLLECTIVES.into_iter().filter(|name| !self.carried.contains_key(*name)).collect();
        if self.failed > 0 || self.passed == 0 {
            bail!("{} of UCC's {} tests failed, {} passed", self.failed, self.tests, self.passed);
        }
        if self.carried.is_empty() || all && !missing.is_empty() {
            bail!("another layer carried all of: {}; run with UCC_LOG_LEVEL=debug to see why", missing.join(", "));
        }
        Ok(())
    }
}

fn numbers(words: &[&str]) -> Vec<u64> {
    words.iter().filter_map(|word| word.parse().ok()).collect()
}

impl std::fmt::Display for Totals {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { tests, passed, failed, skipped, carried, left } = self;
        let operations: u64 = carried.values().sum();
        write!(
            out,
            "{passed} of {tests} tests passed, {failed} failed, {skipped} skipped; {operations} operations of {} \
             collectives by Flexcast, {left} left to other layers",
            carried.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_and_versions_are_read() {
        let found = variables("prefix = /opt/ucc\nUCS_LIBADD = -lucs\n\trecipe = no\n# comment = no\nEMPTY = \n");
        assert_eq!(found.get("prefix").map(String::as_str), Some("/opt/ucc"));
        assert_eq!(found.get("UCS_LIBADD").map(String::as_str), Some("-lucs"));
        assert_eq!(found.get("EMPTY").map(String::as_str), Some(""));
        assert_eq!(found.len(), 3);
        assert_eq!(version_in("#define UCC_VERSION_STRING \"1.3.0\"\n").as_deref(), Some("1.3.0"));
        assert_eq!(version_in("#define UCC_API_MAJOR 1\n"), None);
    }

    #[test]
    fn totals_are_those_of_the_report_and_of_the_log() {
        let text = "x TL_FLEXCAST INFO rank 0 of 2: carried: Bcast 12, Barrier 3; left to other layers: 4; failed: 0\n\
            x TL_FLEXCAST INFO rank 1 of 2: carried: none; left to other layers: 1; failed: 0\n\
            ===== UCC MPI TEST REPORT =====\n\
            collective                 tests    passed    failed   skipped\n\
            Bcast                         12        10         1         1\n\
            Barrier                        3         3         0         0\n\
            Total                         15        13         1         1\n";
        let totals = Totals::of(text).expect("report");
        assert_eq!((totals.tests, totals.passed, totals.failed, totals.skipped, totals.left), (15, 13, 1, 1, 5));
        assert_eq!(totals.carried.get("Bcast"), Some(&12));
        assert!(totals.check(false).is_err());
        let well = Totals { failed: 0, ..totals };
        assert!(well.check(false).is_ok());
        assert!(well.check(true).is_err(), "twelve collectives were another layer's");
        assert!(Totals::of("no report").is_err());
    }
}
