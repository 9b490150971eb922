//! The one writer: MLIR's generic form, which every plugin's parser takes.

use crate::ir::{Attr, Block, Module, Op, Type, ValueId};
use std::fmt::{self, Display, Write};
use tpu_base::DType;

impl Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "module @{} {{", self.name)?;
        write!(f, "  func.func public @{}(", self.main.name)?;
        for (i, &a) in self.main.body.args.iter().enumerate() {
            let sep = if i > 0 { ", " } else { "" };
            write!(f, "{sep}%{a}: {}", self.ty(a))?;
            if let Some(Some(r)) = self.main.aliases.get(i) {
                write!(f, " {{tf.aliasing_output = {r} : i32}}")?;
            }
        }
        write!(f, ") -> (")?;
        for (i, t) in self.main.results.iter().enumerate() {
            let sep = if i > 0 { ", " } else { "" };
            write!(f, "{sep}{t}")?;
        }
        writeln!(f, ") {{")?;
        for op in &self.main.body.ops {
            self.op(f, op, 2)?;
        }
        f.write_str("  }\n}\n")
    }
}

impl Module {
    fn ty(&self, v: ValueId) -> &Type {
        &self.types[v as usize]
    }

    fn op(&self, f: &mut fmt::Formatter<'_>, op: &Op, depth: usize) -> fmt::Result {
        pad(f, depth)?;
        list(f, &op.results, |f, v| write!(f, "%{v}"))?;
        if !op.results.is_empty() {
            f.write_str(" = ")?;
        }
        write!(f, "\"{}\"(", op.name)?;
        list(f, &op.operands, |f, v| write!(f, "%{v}"))?;
        f.write_char(')')?;
        if !op.regions.is_empty() {
            f.write_str(" (")?;
            for (i, r) in op.regions.iter().enumerate() {
                if i > 0 {
                    f.write_str(", ")?;
                }
                self.block(f, r, depth)?;
            }
            f.write_char(')')?;
        }
        if !op.attrs.is_empty() {
            f.write_str(" {")?;
            list(f, &op.attrs, |f, (k, a)| write!(f, "{k} = {a}"))?;
            f.write_char('}')?;
        }
        f.write_str(" : (")?;
        list(f, &op.operands, |f, &v| write!(f, "{}", self.ty(v)))?;
        f.write_str(") -> ")?;
        if op.results.len() == 1 {
            write!(f, "{}", self.ty(op.results[0]))?;
        } else {
            f.write_char('(')?;
            list(f, &op.results, |f, &v| write!(f, "{}", self.ty(v)))?;
            f.write_char(')')?;
        }
        f.write_char('\n')
    }

    fn block(&self, f: &mut fmt::Formatter<'_>, b: &Block, depth: usize) -> fmt::Result {
        f.write_str("{\n")?;
        if !b.args.is_empty() {
            pad(f, depth)?;
            f.write_str("^bb0(")?;
            list(f, &b.args, |f, &v| write!(f, "%{v}: {}", self.ty(v)))?;
            f.write_str("):\n")?;
        }
        for op in &b.ops {
            self.op(f, op, depth + 1)?;
        }
        pad(f, depth)?;
        f.write_char('}')
    }
}

fn pad(f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
    for _ in 0..depth {
        f.write_str("  ")?;
    }
    Ok(())
}

fn list<T>(
    f: &mut fmt::Formatter<'_>,
    items: &[T],
    mut each: impl FnMut(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (i, x) in items.iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        each(f, x)?;
    }
    Ok(())
}

impl Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Ints(v) => array(f, "i64", v),
            Attr::Bools(v) => array(f, "i1", v),
            Attr::Int(i) => write!(f, "{i} : i64"),
            Attr::Int32(i) => write!(f, "{i} : i32"),
            Attr::Bool(b) => write!(f, "{b}"),
            Attr::Str(s) => write!(f, "\"{}\"", s.escape_default()),
            Attr::Raw(s) => f.write_str(s),
            Attr::Matrix(r, c, v) => {
                if v.is_empty() {
                    return write!(f, "dense<> : tensor<{r}x{c}xi64>");
                }
                f.write_str("dense<[")?;
                for (i, row) in v.chunks(*c).enumerate() {
                    write!(f, "{}[", if i > 0 { ", " } else { "" })?;
                    list(f, row, |f, x| write!(f, "{x}"))?;
                    f.write_char(']')?;
                }
                write!(f, "]> : tensor<{r}x{c}xi64>")
            }
            Attr::Elements(ty, bytes) => elements(f, ty, bytes),
        }
    }
}

fn array<T: Display>(f: &mut fmt::Formatter<'_>, elem: &str, v: &[T]) -> fmt::Result {
    write!(f, "array<{elem}")?;
    for (i, x) in v.iter().enumerate() {
        write!(f, "{} {x}", if i > 0 { "," } else { ":" })?;
    }
    f.write_char('>')
}

/// One element readably, the rest as a hexadecimal blob. Floats that a short decimal doesn't hold are written by their bits.
fn elements(f: &mut fmt::Formatter<'_>, ty: &Type, bytes: &[u8]) -> fmt::Result {
    f.write_str("dense<")?;
    let size = ty.dtype.size();
    if ty.numel() == 0 {
    } else if bytes.len() == size {
        element(f, ty.dtype, bytes)?;
    } else if ty.dtype == DType::Bool {
        // i1 blobs are bit-packed and differ between versions: spell them out, nested as the shape is
        nested(f, &ty.dims, bytes)?;
    } else {
        f.write_str("\"0x")?;
        for b in bytes {
            write!(f, "{b:02X}")?;
        }
        f.write_char('"')?;
    }
    write!(f, "> : {ty}")
}

fn nested(f: &mut fmt::Formatter<'_>, dims: &[i64], bytes: &[u8]) -> fmt::Result {
    let Some((&n, inner)) = dims.split_first() else {
        return write!(f, "{}", bytes[0] != 0);
    };
    f.write_char('[')?;
    let chunk = bytes.len() / n.max(1) as usize;
    for (i, part) in bytes.chunks(chunk.max(1)).enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        nested(f, inner, part)?;
    }
    f.write_char(']')
}

fn element(f: &mut fmt::Formatter<'_>, dtype: DType, b: &[u8]) -> fmt::Result {
    let word = b.iter().rev().fold(0u64, |w, &x| (w << 8) | x as u64);
    match dtype {
        DType::Bool => write!(f, "{}", word != 0),
        DType::F32 => float(f, f32::from_bits(word as u32) as f64, format_args!("0x{word:08X}")),
        DType::F64 => float(f, f64::from_bits(word), format_args!("0x{word:016X}")),
        DType::C64 | DType::C128 => {
            let (re, im) = b.split_at(b.len() / 2);
            f.write_char('(')?;
            element(f, dtype.real(), re)?;
            f.write_str(", ")?;
            element(f, dtype.real(), im)?;
            f.write_char(')')
        }
        d if d.is_float() => write!(f, "0x{word:0width$X}", width = b.len() * 2),
        d if d.is_unsigned() => write!(f, "{word}"),
        d => {
            let shift = 64 - 8 * d.size() as u32;
            write!(f, "{}", ((word << shift) as i64) >> shift)
        }
    }
}

fn float(f: &mut fmt::Formatter<'_>, v: f64, bits: fmt::Arguments<'_>) -> fmt::Result {
    let short = v.is_finite() && v.abs() < 1e6 && (v * 1024.0).fract() == 0.0 && !(v == 0.0 && v.is_sign_negative());
    if short { write!(f, "{v:?}") } else { f.write_fmt(bits) }
}

#[cfg(test)]
mod tests {
    use crate::{Builder, Type};
    use tpu_base::DType;

    #[test]
    fn writes_generic_form() {
        let b = Builder::new();
        let x = b.param(Type::new(DType::F32, [2, 3]));
        let y = b.param(Type::new(DType::F32, [3]));
        let z = (x + y * 2.0).sum(&[1]);
        let m = b.finish("add", &[z], vec![None, None]).unwrap();
        let text = m.to_string();
        assert!(text.contains("%0: tensor<2x3xf32>, %1: tensor<3xf32>) -> (tensor<2xf32>)"), "{text}");
        assert!(text.contains("dense<2.0> : tensor<f32>"), "{text}");
        assert!(text.contains("\"stablehlo.reduce\""), "{text}");
        assert!(text.contains("dimensions = array<i64: 1>"), "{text}");
    }

    #[test]
    fn what_no_result_needs_is_dropped() {
        let b = Builder::new();
        let t = Type::new(DType::F32, [2]);
        let (x, y, z) = (b.param(t.clone()), b.param(t.clone()), b.param(t));
        let _dead = x.exp() + y;
        let live = z.sum(&[0]);
        let mut m = b.finish("pruned", &[live], vec![]).unwrap();
        assert_eq!(m.prune(), [2]);
        let text = m.to_string();
        assert!(!text.contains("exponential") && text.contains("@main(%2: tensor<2xf32>)"), "{text}");
    }

    #[test]
    fn keeps_the_first_mistake() {
        let b = Builder::new();
        let x = b.param(Type::new(DType::F32, [2]));
        let y = b.param(Type::new(DType::I32, [2]));
        let z = x + y;
        let e = b.finish("bad", &[z], vec![None, None]).unwrap_err();
        assert_eq!(e.what, "dtypes float32 and int32");
    }
}
