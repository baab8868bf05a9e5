//! `vcr inspect model --list-gpus`: prints the table of GPUs.

use std::io::{self, Write};

use serde_json::{Value, json};
use vcr_roofline::gpus::{GPUS, Gpu};

use crate::terminal::style::{bare_table, write_table};

pub(super) fn write_gpus(out: &mut dyn Write) -> io::Result<()> {
    let mut table = bare_table();
    table.set_header(["gpu", "TFLOP/s*", "fp8", "fp4", "GB/s", "link", "GiB", "$/h", "source"]);
    for Gpu { name, spec, memory_gib, source, price, .. } in GPUS {
        let tera = |flops: Option<f64>| flops.map_or(String::new(), |flops| format!("{:.0}", flops / 1e12));
        let giga = |bytes: f64| format!("{:.0}", bytes / 1e9);
        table.add_row([
            (*name).to_owned(),
            tera(Some(spec.peak_flops)),
            tera(spec.quantised.fp8_flops),
            tera(spec.quantised.fp4_flops),
            giga(spec.memory_bytes_per_s),
            giga(spec.interconnect_bytes_per_s),
            format!("{memory_gib:.0}"),
            price.map_or(String::new(), |price| format!("{:.2}", price.usd_per_hour)),
            (*source).to_owned(),
        ]);
    }
    write_table(out, &table)?;
    writeln!(out, "\n* dense, numbers of 16 bits; `link` is one direction of NVLink, Infinity Fabric or PCIe")?;
    writeln!(out, "`$/h` is the list price of one GPU on demand; --json has the provider and the date of each price")
}

pub(super) fn gpus_as_json() -> Value {
    let row = |Gpu { name, other_names, spec, memory_gib, gpus_per_node, source, price }: &Gpu| {
        json!({
            "name": name,
            "other_names": other_names,
            "peak_flops_16_bits": spec.peak_flops,
            "peak_flops_fp8": spec.quantised.fp8_flops,
            "peak_flops_int8": spec.quantised.int8_flops,
            "peak_flops_fp4": spec.quantised.fp4_flops,
            "memory_bytes_per_s": spec.memory_bytes_per_s,
            "link_bytes_per_s": spec.interconnect_bytes_per_s,
            "memory_gib": memory_gib,
            "gpus_per_node": gpus_per_node,
            "source": source,
            "list_price": price.map(|price| {
                json!({"usd_per_hour": price.usd_per_hour, "provider": price.provider, "date": price.date})
            }),
        })
    };
    GPUS.iter().map(row).collect()
}
