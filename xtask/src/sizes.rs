use anyhow::{Context as _, Result};
use comfy_table::{CellAlignment, Table, presets};
use flexcast_image::Image;
use flexcast_image::callgraph::CallGraph;

use crate::manifest::Manifest;
use crate::toolchain::Toolchain;
use crate::{build, hot_loops, status, verify, workspace};

/// Print what each image takes of each memory region.
#[derive(clap::Args)]
pub(crate) struct Sizes {
    /// Images to measure [default: all of device/images].
    images: Vec<String>,
    /// What to build for: a file of toolchains/.
    #[arg(long, default_value = "emu")]
    toolchain: String,
}

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    region: String,
    used_bytes: u64,
    budget_bytes: u64,
    note: String,
}

impl Sizes {
    pub(crate) fn run(&self) -> Result<()> {
        let toolchain = Toolchain::load(&self.toolchain)?;
        let images = workspace::select_images(&self.images)?;
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["image", "region", "used", "budget", "left", ""]);
        for column in 2..5 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for (name, file) in images.iter().zip(build::build(&toolchain, &images)?) {
            let bytes = std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
            let image = Image::parse(&bytes).with_context(|| file.display().to_string())?;
            let manifest = Manifest::load(&workspace::root().join("device"), name)?;
            let (vendor, _) = verify::vendors_part(&toolchain, &file, &image);
            let graph = CallGraph::with_foreign(&image, &vendor.code);
            let mut rows = rows(&toolchain, &manifest, &image, &graph);
            for (title, used_bytes) in hot_loops::loop_sizes(name, &image)? {
                let budget_bytes = toolchain.code_cache_bytes;
                rows.push(Row { region: format!("loop {title}"), used_bytes, budget_bytes, note: String::new() });
            }
            for row in rows {
                let left = 100.0 * (1.0 - row.used_bytes as f64 / row.budget_bytes as f64);
                let (used, budget) = (size(row.used_bytes), size(row.budget_bytes));
                table.add_row([name.clone(), row.region, used, budget, format!("{left:.0} %"), row.note]);
            }
        }
        status::print(format_args!("{table}"))?;
        Ok(())
    }
}

fn rows(toolchain: &Toolchain, manifest: &Manifest, image: &Image, graph: &CallGraph) -> Vec<Row> {
    let mut rows = Vec::new();
    for region in &toolchain.regions {
        let budget_bytes = manifest.budget_bytes(&region.name).unwrap_or(region.size_bytes);
        let used_bytes = region.used_bytes(image);
        rows.push(Row { region: region.name.clone(), used_bytes, budget_bytes, note: String::new() });
    }
    let bounds = image.entries().iter().filter_map(|entry| Some((entry, graph.stack_bound(entry.addr)?)));
    if let Some((entry, bound)) = bounds.max_by_key(|(_, bound)| bound.bytes) {
        let sure = if bound.unknown.is_empty() { "" } else { ", at least" };
        rows.push(Row {
            region: "stack/thread".to_owned(),
            used_bytes: bound.bytes,
            budget_bytes: toolchain.stack_bytes,
            note: format!("{}{sure}", entry.name),
        });
    }
    rows
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.0} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_carry_units() {
        assert_eq!([size(640), size(16384), size(0x0800_0000)], ["640 B", "16.0 KiB", "128 MiB"]);
    }
}
