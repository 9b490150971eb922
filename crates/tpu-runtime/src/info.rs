//! What the device says about itself, as JSON, and what identifies its compiler.

use crate::capture;
use crate::config::Config;
use crate::device::Device;
use crate::explain::Why;
use serde_json::{Map, Value as Json, json};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use tpu_graph::Cut;
use tpu_pjrt::{Client, Value};

fn plain(v: &Value) -> Json {
    match v {
        Value::Str(s) => json!(s),
        Value::Int(i) => json!(i),
        Value::IntList(l) => json!(l),
        Value::Float(f) => json!(f),
        Value::Bool(b) => json!(b),
    }
}

pub(crate) fn attributes(list: &[(String, Value)]) -> Json {
    Json::Object(list.iter().map(|(k, v)| (k.clone(), plain(v))).collect::<Map<_, _>>())
}

/// Everything that decides what a serialized executable is good for.
pub(crate) fn identity(config: &Config, client: &Client) -> String {
    let p = client.plugin();
    let file = std::fs::metadata(&config.plugin).map(|m| m.len()).unwrap_or(0);
    // code compiled for this processor may not run on another that shares the cache
    let cpu = if config.kind == "cpu" { cpu_flags() } else { String::new() };
    let device = client.addressable_devices().ok().and_then(|d| d.first().and_then(|d| d.kind().ok()));
    format!(
        "{} {} {} {:?} {:?} {file} {device:?} {cpu}",
        env!("CARGO_PKG_VERSION"),
        client.platform_name(),
        client.platform_version(),
        p.version(),
        p.attributes(),
    )
}

fn cpu_flags() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = |key: &str| text.lines().find(|l| l.starts_with(key)).unwrap_or_default().to_owned();
    line("model name") + &line("flags")
}

/// (limit to enforce, size to report).
pub(crate) fn memory_limits(config: &Config, device: &tpu_pjrt::Device) -> (Option<u64>, u64) {
    let of_device = device.memory_stats().ok().and_then(|m| m.bytes_limit).map(|b| b as u64);
    let host = || {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let kb: u64 = text.lines().find(|l| l.starts_with("MemTotal:"))?.split_whitespace().nth(1)?.parse().ok()?;
        Some(kb * 1024)
    };
    let total = of_device.or_else(|| if config.kind == "cpu" { host() } else { None }).unwrap_or(0);
    (config.memory_limit.or(of_device), total)
}

/// Writes a program to `$TORCH_TPU_DUMP/<op>-<key>.mlir`, and beside it, as JSON, the ops that it is made of: the number of the
/// first value of each, its name and its Python line.
pub(crate) fn dump<P>(op: &str, cut: &Cut<P>, starts: &[u32], text: &str) {
    static DIR: OnceLock<Option<std::ffi::OsString>> = OnceLock::new();
    if let Some(dir) = DIR.get_or_init(|| std::env::var_os("TORCH_TPU_DUMP")) {
        let name: String = op.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let dir = std::path::Path::new(dir);
        drop(std::fs::create_dir_all(dir));
        let ops: Json = cut.nodes.iter().zip(starts).map(|(n, s)| json!([s, n.sig.form.name, n.sig.site])).collect();
        let file = dir.join(format!("{name}-{:032x}.mlir", cut.key));
        drop(std::fs::write(file.with_extension("json"), ops.to_string()));
        // readers may watch the folder
        drop(
            std::fs::write(file.with_extension("part"), text)
                .and_then(|()| std::fs::rename(file.with_extension("part"), &file)),
        );
    }
}

impl Device {
    /// JSON about `topic`: `device`, `cache`, or `explain` (with `explain:start` and `explain:stop`, and `site:…`, the user's
    /// line that the graph being recorded comes from here on); `null` for others.
    pub fn info(&self, topic: &str) -> String {
        if let Some(site) = topic.strip_prefix("site:") {
            capture::at(site);
        }
        match topic {
            "device" => self.device_info(),
            "cache" => self.cache_info(),
            "explain:start" => {
                self.flush(Why::Mode);
                self.explain.start();
                Json::Null
            }
            "explain:stop" => {
                self.synchronize(None);
                self.explain.stop();
                Json::Null
            }
            "explain" => self.explain.report(),
            _ => Json::Null,
        }
        .to_string()
    }

    fn device_info(&self) -> Json {
        let p = self.client.plugin();
        let (major, minor) = p.version();
        let devices: Vec<Json> = self
            .client
            .devices()
            .unwrap_or_default()
            .iter()
            .map(|d| {
                json!({
                    "id": d.id().unwrap_or(-1),
                    "kind": d.kind().unwrap_or_default(),
                    "attributes": attributes(&d.attributes().unwrap_or_default()),
                })
            })
            .collect();
        json!({
            "kind": self.config.kind,
            "plugin": self.config.plugin,
            "platform": self.client.platform_name(),
            "platform_version": self.client.platform_version(),
            "pjrt_version": format!("{major}.{minor}"),
            "identity": blake3::hash(identity(&self.config, &self.client).as_bytes()).to_hex().as_str(),
            "plugin_attributes": attributes(p.attributes()),
            "device_kind": self.device.kind().unwrap_or_default(),
            "devices": devices,
            "memory_limit": self.memory.stats().limit,
        })
    }

    fn cache_info(&self) -> Json {
        let (signatures, plans, hits, evictions) = self.table_counts();
        let mut j = json!({
            "signatures": signatures,
            "plans": plans,
            "plan_hits": hits,
            "plan_evictions": evictions,
            "compiling": self.compiler.open(),
            "compiled": self.compiler.count(),
            "compile_seconds": self.compiler.seconds(),
            "disk": Json::Null,
        });
        if let Some(d) = self.compiler.disk() {
            let (entries, bytes) = d.size();
            j["disk"] = json!({
                "dir": d.dir(),
                "limit": d.limit(),
                "entries": entries,
                "bytes": bytes,
                "hits": d.hits.load(Relaxed),
                "misses": d.misses.load(Relaxed),
                "bad": d.bad.load(Relaxed),
                "write_errors": d.write_errors.load(Relaxed),
            });
        }
        j
    }
}
