//! What an instruction of an optimized program computes and moves. The compiler's own counts take every loop's body once.

use std::collections::HashMap;

use crate::optimized::{Computation, RawInstruction};

/// Of a convolution (which the TPU compiler makes of every product), or of all those in a fusion.
pub(crate) fn flops(c: &Computation, i: &RawInstruction, by_id: &HashMap<i64, &Computation>, depth: usize) -> f64 {
    match i.opcode.as_str() {
        "convolution" => convolution(c, i).unwrap_or(0.0),
        "fusion" if depth > 0 => {
            let called = i.called.iter().filter_map(|id| by_id.get(id));
            called.map(|c| c.instructions.iter().map(|i| flops(c, i, by_id, depth - 1)).sum::<f64>()).sum()
        }
        _ => 0.0,
    }
}

fn convolution(c: &Computation, i: &RawInstruction) -> Option<f64> {
    let dims = |id: i64| c.instructions.iter().find(|i| i.id == id)?.shape.as_ref().map(|s| s.dims.as_slice());
    let &[left, right] = i.operands.as_slice() else { return None };
    let (input, kernel, output) = (dims(left)?, dims(right)?, &i.shape.as_ref()?.dims);
    let d = i.convolution.as_ref()?;
    let at = |dims: &[i64], k: i64| dims.get(k as usize).map(|&n| n as f64);
    // a kernel lists the inputs of one group only
    let mut products = at(output, d.output_batch)? * at(output, d.output_feature)? * at(kernel, d.kernel_input)?;
    let windows = i.window.as_ref().map_or(&[][..], |w| &w.dimensions);
    for (k, w) in windows.iter().enumerate() {
        let input = *input.get(*d.input_spatial.get(k)? as usize)?;
        let output = *output.get(*d.output_spatial.get(k)? as usize)?;
        products *= w.pairs(input, output) as f64;
    }
    Some(2.0 * products)
}

/// How a convolution slides along a dimension.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct WindowDimension {
    #[prost(int64, tag = "1")]
    size: i64,
    #[prost(int64, tag = "2")]
    stride: i64,
    #[prost(int64, tag = "3")]
    padding: i64,
    #[prost(int64, tag = "5")]
    dilation: i64,
    #[prost(int64, tag = "6")]
    base_dilation: i64,
}

impl WindowDimension {
    /// Places of the window that meet an element, over all places of the output.
    fn pairs(&self, input: i64, output: i64) -> i64 {
        let (dilation, base) = (self.dilation.max(1), self.base_dilation.max(1));
        if self.size == 1 && self.stride <= 1 && self.padding == 0 && base == 1 {
            return output.min(input);
        }
        let meets = |at: i64| at >= 0 && at % base == 0 && at / base < input;
        let of =
            |o: i64| (0..self.size).filter(|w| meets(o * self.stride - self.padding + w * dilation)).count() as i64;
        (0..output).map(of).sum()
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Window {
    #[prost(message, repeated, tag = "1")]
    dimensions: Vec<WindowDimension>,
}

/// Which dimension is what.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Convolution {
    #[prost(int64, tag = "3")]
    kernel_input: i64,
    #[prost(int64, tag = "9")]
    output_batch: i64,
    #[prost(int64, tag = "10")]
    output_feature: i64,
    #[prost(int64, repeated, tag = "11")]
    input_spatial: Vec<i64>,
    #[prost(int64, repeated, tag = "12")]
    output_spatial: Vec<i64>,
}

/// Bytes that an instruction moves. Of an operand that a fusion only takes slices of, and of one that it only writes a part
/// into, those count.
pub(crate) fn bytes(c: &Computation, i: &RawInstruction, by_id: &HashMap<i64, &Computation>) -> u64 {
    let size = |id: &i64| c.instructions.iter().find(|i| i.id == *id).map_or(0, RawInstruction::size);
    let inner = (i.opcode == "fusion").then(|| i.called.first().and_then(|id| by_id.get(id))).flatten();
    let Some(inner) = inner else { return moved(i, &size) };
    let result = inner.instructions.iter().find(|r| r.id == inner.root).map_or(0, |root| written(inner, root));
    let taken = i.operands.iter().enumerate().map(|(k, id)| {
        let parameter = inner.instructions.iter().find(|p| p.opcode == "parameter" && p.parameter == k as i64);
        parameter.map_or_else(|| size(id), |p| read(inner, p).min(size(id)))
    });
    result + taken.sum::<u64>()
}

fn moved(i: &RawInstruction, size: &dyn Fn(&i64) -> u64) -> u64 {
    match i.opcode.as_str() {
        "dynamic-slice" | "slice" => 2 * i.size(),
        "dynamic-update-slice" => 2 * i.operands.get(1).map_or(0, size),
        _ => i.size() + i.operands.iter().map(size).sum::<u64>(),
    }
}

/// Bytes of the result that are written.
fn written(c: &Computation, root: &RawInstruction) -> u64 {
    let by_id = |id: &i64| c.instructions.iter().find(|i| i.id == *id);
    match root.opcode.as_str() {
        "tuple" => root.operands.iter().filter_map(by_id).map(|i| written(c, i)).sum(),
        "bitcast" => root.operands.first().and_then(by_id).map_or(0, |i| written(c, i)),
        "dynamic-update-slice" => root.operands.get(1).and_then(by_id).map_or(0, RawInstruction::size),
        _ => root.size(),
    }
}

/// Bytes of a fusion's parameter that it reads.
fn read(c: &Computation, p: &RawInstruction) -> u64 {
    let mut all = 0;
    for user in c.instructions.iter().filter(|i| i.operands.contains(&p.id)) {
        all += match user.opcode.as_str() {
            "dynamic-slice" | "slice" if user.operands.first() == Some(&p.id) => user.size(),
            "dynamic-update-slice" if user.operands.first() == Some(&p.id) => 0,
            "bitcast" => read(c, user),
            _ => return p.size(),
        };
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_counts_where_it_meets_elements() {
        let w = |size, stride, padding, base_dilation| WindowDimension {
            size,
            stride,
            padding,
            dilation: 1,
            base_dilation,
        };
        assert_eq!(w(3, 1, 1, 1).pairs(5, 5), 13); // both ends lose one
        assert_eq!(w(1, 1, 0, 1).pairs(7, 7), 7);
        assert_eq!(w(8, 7, 0, 8).pairs(8, 8), 8); // how a batch is written: each place meets its own element
    }
}
