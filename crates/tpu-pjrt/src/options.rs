//! Compile options, as the protocol buffer that plugins read.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;

use crate::error::{Code, Error, Result};
use crate::plugin::Plugin;

/// The value of an XLA option.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Override {
    Str(String),
    Bool(bool),
    Int(i64),
    Double(f64),
}

impl From<&str> for Override {
    fn from(value: &str) -> Self {
        Self::Str(value.to_owned())
    }
}
impl From<bool> for Override {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}
impl From<i64> for Override {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}
impl From<f64> for Override {
    fn from(value: f64) -> Self {
        Self::Double(value)
    }
}

/// How to compile. The default is one replica and one partition on the plugin's first device.
#[derive(Clone, Debug, PartialEq)]
pub struct CompileOptions {
    /// Copies of the program.
    pub num_replicas: i64,
    /// Devices that share one copy.
    pub num_partitions: i64,
    /// Device ids, by replica and then partition; empty leaves the choice to the plugin.
    pub device_assignment: Vec<i64>,
    /// Partition the program by its sharding annotations.
    pub use_spmd_partitioning: bool,
    /// …and have Shardy propagate them.
    pub use_shardy_partitioner: bool,
    /// Compile for any device of the client; the execution names it.
    pub portable: bool,
    /// XLA options by name. Sorted, so that equal options encode equally.
    pub overrides: BTreeMap<String, Override>,
    /// XLA options that make no difference to results: a plugin that does not know one does without.
    pub preferences: BTreeMap<String, Override>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            num_replicas: 1,
            num_partitions: 1,
            device_assignment: Vec::new(),
            use_spmd_partitioning: false,
            use_shardy_partitioner: false,
            portable: false,
            overrides: BTreeMap::new(),
            preferences: BTreeMap::new(),
        }
    }
}

impl CompileOptions {
    /// The default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// The options that plans on `platform` do best with; docs/decisions/compile-options.md says why.
    pub fn for_platform(platform: &str) -> Self {
        match platform {
            // Each plugin knows some of these names and refuses the others.
            "cpu" => Self::new()
                .prefer("xla_cpu_use_fusion_emitters", false)
                // the default drops a NaN on the right of maximum and minimum
                .prefer("xla_cpu_enable_fast_min_max", false)
                .prefer("xla_cpu_use_new_xtile_lowering", true)
                .prefer("xla_disable_hlo_passes", "fusion-wrapper"),
            _ => Self::new(),
        }
    }

    /// The same without what makes small programs compile faster: large ones run slower for it, and XLA's older CPU emitter
    /// unrolls a reduction of several dimensions to one number whole (4,096 elements: seconds).
    #[must_use]
    pub fn thorough(mut self) -> Self {
        self.preferences.remove("xla_cpu_use_fusion_emitters");
        self.preferences.remove("xla_disable_hlo_passes"); // a reduction outside a fusion goes to the older emitter too
        self
    }

    /// Runs on the device with this id.
    #[must_use]
    pub fn on_device(mut self, id: i64) -> Self {
        self.device_assignment = vec![id];
        self
    }

    /// Sets an XLA option for this compilation, which fails if the plugin does not know it.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Override>) -> Self {
        self.overrides.insert(name.into(), value.into());
        self
    }

    /// Sets an XLA option that a plugin may ignore: names come and go with XLA's versions, and plugins
    /// refuse those they do not know.
    #[must_use]
    pub fn prefer(mut self, name: impl Into<String>, value: impl Into<Override>) -> Self {
        self.preferences.insert(name.into(), value.into());
        self
    }

    /// The bytes that plugins read, preferences included. Equal options give equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_without(&BTreeSet::new())
    }

    /// The bytes for a plugin that has refused some preferences.
    pub(crate) fn encode_without(&self, refused: &BTreeSet<String>) -> Vec<u8> {
        let preferences = self.preferences.iter().filter(|(name, _)| !refused.contains(*name));
        let overrides = preferences.chain(&self.overrides);
        CompileOptionsProto {
            executable_build_options: Some(ExecutableBuildOptionsProto {
                num_replicas: self.num_replicas,
                num_partitions: self.num_partitions,
                use_spmd_partitioning: self.use_spmd_partitioning,
                device_assignment: self.assignment(),
                use_shardy_partitioner: self.use_shardy_partitioner,
            }),
            compile_portable_executable: self.portable,
            env_option_overrides: overrides
                .map(|(name, value)| (name.clone(), OptionOverrideProto::from(value)))
                .collect(),
        }
        .encode_to_vec()
    }

    /// The preference that `error` refuses.
    fn refused<'e>(&self, error: &'e Error) -> Option<&'e str> {
        let Error::Plugin { code: Code::InvalidArgument, message, .. } = error else { return None };
        let name = message.split_once("No such compile option: '")?.1.split('\'').next()?;
        self.preferences.contains_key(name).then_some(name)
    }

    /// Compiles with `compile(encoded)`, without the preferences that the plugin refuses. They are
    /// refused before anything is compiled, and remembered, so this costs next to nothing.
    pub(crate) fn negotiate<T>(&self, plugin: &Plugin, compile: impl Fn(&[u8]) -> Result<T>) -> Result<T> {
        loop {
            let known = plugin.refused().clone();
            match compile(&self.encode_without(&known)) {
                Err(error) => match self.refused(&error) {
                    Some(name) if !known.contains(name) => {
                        plugin.refused().insert(name.to_owned());
                    }
                    _ => return Err(error),
                },
                ok => return ok,
            }
        }
    }

    fn assignment(&self) -> Option<DeviceAssignmentProto> {
        if self.device_assignment.is_empty() {
            return None;
        }
        let partitions = usize::try_from(self.num_partitions).unwrap_or(1).max(1);
        let column = |partition| ComputationDevice {
            replica_device_ids: self.device_assignment.iter().skip(partition).step_by(partitions).copied().collect(),
        };
        Some(DeviceAssignmentProto {
            replica_count: self.num_replicas as i32,
            computation_count: self.num_partitions as i32,
            computation_devices: (0..partitions).map(column).collect(),
        })
    }
}

// The messages of XLA's compile_options.proto and xla_data.proto, in the fields that we set.

#[derive(Clone, PartialEq, prost::Message)]
struct CompileOptionsProto {
    #[prost(message, optional, tag = "3")]
    executable_build_options: Option<ExecutableBuildOptionsProto>,
    #[prost(bool, tag = "4")]
    compile_portable_executable: bool,
    #[prost(btree_map = "string, message", tag = "7")]
    env_option_overrides: BTreeMap<String, OptionOverrideProto>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ExecutableBuildOptionsProto {
    #[prost(int64, tag = "4")]
    num_replicas: i64,
    #[prost(int64, tag = "5")]
    num_partitions: i64,
    #[prost(bool, tag = "6")]
    use_spmd_partitioning: bool,
    #[prost(message, optional, tag = "9")]
    device_assignment: Option<DeviceAssignmentProto>,
    #[prost(bool, tag = "19")]
    use_shardy_partitioner: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DeviceAssignmentProto {
    #[prost(int32, tag = "1")]
    replica_count: i32,
    #[prost(int32, tag = "2")]
    computation_count: i32,
    #[prost(message, repeated, tag = "3")]
    computation_devices: Vec<ComputationDevice>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ComputationDevice {
    #[prost(int64, repeated, tag = "1")]
    replica_device_ids: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OptionOverrideProto {
    #[prost(oneof = "OverrideValue", tags = "1, 2, 3, 4")]
    value: Option<OverrideValue>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum OverrideValue {
    #[prost(string, tag = "1")]
    Str(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
}

impl From<&Override> for OptionOverrideProto {
    fn from(value: &Override) -> Self {
        let value = match value {
            Override::Str(value) => OverrideValue::Str(value.clone()),
            Override::Bool(value) => OverrideValue::Bool(*value),
            Override::Int(value) => OverrideValue::Int(*value),
            Override::Double(value) => OverrideValue::Double(*value),
        };
        Self { value: Some(value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every PJRT client writes these six bytes for "one replica, one partition".
    #[test]
    fn default_options_are_the_well_known_bytes() {
        assert_eq!(CompileOptions::default().encode(), [0x1a, 0x04, 0x20, 0x01, 0x28, 0x01]);
    }

    #[test]
    fn an_assignment_has_a_column_per_partition() {
        let options = CompileOptions {
            num_replicas: 2,
            num_partitions: 2,
            device_assignment: vec![0, 1, 2, 3],
            ..CompileOptions::default()
        };
        let columns = options.assignment().map(|a| a.computation_devices).unwrap_or_default();
        let ids: Vec<_> = columns.into_iter().map(|c| c.replica_device_ids).collect();
        assert_eq!(ids, [vec![0, 2], vec![1, 3]]);
    }

    #[test]
    fn the_order_of_overrides_does_not_matter() {
        let one = CompileOptions::new().with("a", 1_i64).with("b", true);
        let two = CompileOptions::new().with("b", true).with("a", 1_i64);
        assert_eq!(one.encode(), two.encode());
    }
}
