//! Parses an ATen schema string: the part of its grammar that functional overloads use.

use tpu_base::Scalar;

/// What an argument is declared as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgType {
    /// `Tensor`
    Tensor,
    /// `Tensor[]` and `Tensor?[]`
    Tensors,
    /// `Scalar`
    Scalar,
    /// `Scalar[]`
    Scalars,
    /// `int`, `SymInt`, `ScalarType`, `Layout`, `MemoryFormat`
    Int,
    /// `int[]`, `SymInt[]`, `bool[]`
    Ints,
    /// `bool`
    Bool,
    /// `float`
    Float,
    /// `float[]`
    Floats,
    /// `str`
    Str,
    /// `Device`
    Device,
    /// `Generator`
    Generator,
}

/// One declared argument.
#[derive(Clone, Debug, PartialEq)]
pub struct SchemaArg {
    /// Name.
    pub name: &'static str,
    /// Type.
    pub ty: ArgType,
    /// Written `?`.
    pub optional: bool,
    /// The default, where it is a number or a bool.
    pub default: Option<Scalar>,
}

/// A parsed schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    /// The whole string.
    pub text: &'static str,
    /// `name` or `name.overload`.
    pub name: &'static str,
    /// Arguments in order.
    pub args: Vec<SchemaArg>,
    /// Number of results that are tensors; `None` for a list (`Tensor[]`).
    pub results: Option<usize>,
}

impl Schema {
    /// Parses `name.overload(Type name=default, *, …) -> results`; `None` if it isn't one.
    pub fn parse(text: &'static str) -> Option<Schema> {
        let open = text.find('(')?;
        let arrow = text.rfind(" -> ")?;
        let inside = text[open + 1..arrow].strip_suffix(')')?;
        let args = split(inside).into_iter().filter(|a| *a != "*").map(parse_arg).collect::<Option<Vec<_>>>()?;
        let results = match &text[arrow + 4..] {
            "Tensor[]" => None,
            "()" => Some(0),
            r => Some(
                split(r.trim_start_matches('(').trim_end_matches(')'))
                    .iter()
                    .filter(|r| !r.starts_with("SymInt ") && !r.starts_with("int "))
                    .count(),
            ),
        };
        Some(Schema { text, name: &text[..open], args, results })
    }

    /// Position of an argument.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.args.iter().position(|a| a.name == name)
    }
}

/// Splits at commas outside brackets.
fn split(s: &'static str) -> Vec<&'static str> {
    let (mut depth, mut start, mut out) = (0, 0, vec![]);
    for (i, c) in s.char_indices() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth -= 1,
            ',' if depth == 0 => {
                out.push(s[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    if !s[start..].trim().is_empty() {
        out.push(s[start..].trim());
    }
    out
}

fn parse_arg(s: &'static str) -> Option<SchemaArg> {
    let (ty, rest) = s.split_once(' ')?;
    let (name, default) = match rest.split_once('=') {
        Some((n, d)) => (n, Some(d)),
        None => (rest, None),
    };
    let optional = ty.ends_with('?');
    let bare = ty.trim_end_matches('?');
    let (elem, list) = match bare.find('[') {
        Some(i) => (bare[..i].trim_end_matches('?'), true),
        None => (bare, false),
    };
    let elem = elem.split('(').next()?;
    use ArgType::*;
    let ty = match (elem, list) {
        ("Tensor", false) => Tensor,
        ("Tensor", true) => Tensors,
        ("Scalar", false) => Scalar,
        ("Scalar", true) => Scalars,
        ("int" | "SymInt" | "ScalarType" | "Layout" | "MemoryFormat", false) => Int,
        ("int" | "SymInt" | "bool", true) => Ints,
        ("bool", false) => Bool,
        ("float", false) => Float,
        ("float", true) => Floats,
        ("str", false) => Str,
        ("Device", false) => Device,
        ("Generator", false) => Generator,
        _ => return None,
    };
    Some(SchemaArg { name, ty, optional, default: default.and_then(number) })
}

fn number(s: &str) -> Option<Scalar> {
    match s {
        "True" => Some(Scalar::Bool(true)),
        "False" => Some(Scalar::Bool(false)),
        _ => s.parse().map(Scalar::Int).or_else(|_| s.parse().map(Scalar::Double)).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_upstream_writes() {
        let s = Schema::parse("add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor").unwrap();
        assert_eq!((s.name, s.args.len(), s.results), ("add.Tensor", 3, Some(1)));
        assert_eq!(s.args[2].default, Some(Scalar::Int(1)));
        let s = Schema::parse(
            "convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, \
             bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
        )
        .unwrap();
        assert_eq!(s.results, Some(3));
        assert!(s.args[3].optional && s.args[3].ty == ArgType::Ints);
        assert_eq!(s.args[5].ty, ArgType::Ints);
        let s = Schema::parse("index.Tensor(Tensor self, Tensor?[] indices) -> Tensor").unwrap();
        assert_eq!(s.args[1].ty, ArgType::Tensors);
    }
}
