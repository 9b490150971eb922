//! What the null plugin reads of a program: the types of `main`, and which inputs it returns.

use tpu_pjrt::ElementType;

/// A tensor type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) element: ElementType,
    pub(super) dims: Vec<i64>,
}

impl Type {
    pub(super) fn bytes(&self) -> usize {
        self.element.host_bytes(&self.dims).unwrap_or(0)
    }
}

/// One output: its type, and the input that it is, if `main` returns one unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) ty: Type,
    pub(super) input: Option<usize>,
}

/// The signature of `main`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) inputs: Vec<Type>,
    pub(super) outputs: Vec<Output>,
}

impl Program {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let after = text.split_once("@main")?.1;
        let open = after.find('(')?;
        let close = open + closing(&after[open..])?;
        let (parameters, rest) = (&after[open + 1..close], &after[close + 1..]);
        let names: Vec<&str> = parameters
            .split('%')
            .skip(1)
            .map(|parameter| parameter.split(':').next().unwrap_or_default().trim())
            .collect();
        let (results, body) = rest.split_once('{').map(|(_, _)| split_results(rest))?;
        let returned: Vec<Option<usize>> = body
            .lines()
            .map(str::trim)
            .find_map(|line| {
                line.strip_prefix("return")
                    .or_else(|| line.strip_prefix("func.return"))
                    .or_else(|| line.strip_prefix("\"func.return\""))
            })
            .map(|line| line.split(':').next().unwrap_or_default())
            .unwrap_or_default()
            .split(',')
            .map(|name| names.iter().position(|&n| n == name.trim().trim_start_matches(['%', '('])))
            .collect();
        let output = |(index, ty)| Output { ty, input: returned.get(index).copied().flatten() };
        Some(Self {
            inputs: types(parameters)?,
            outputs: types(results)?.into_iter().enumerate().map(output).collect(),
        })
    }
}

/// Offset of the parenthesis that closes the first one.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (offset, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return Some(offset),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The result types and the body. Result attributes are in braces too, so a parenthesized list is
/// taken whole.
fn split_results(rest: &str) -> (&str, &str) {
    let trimmed = rest.trim_start().trim_start_matches("->").trim_start();
    let end = match trimmed.strip_prefix('(') {
        Some(_) => closing(trimmed).map(|end| end + 1),
        None => trimmed.find('{'),
    };
    trimmed.split_at(end.unwrap_or(trimmed.len()))
}

/// All `tensor<…>` types in `text`; `None` if one is not understood.
fn types(text: &str) -> Option<Vec<Type>> {
    text.split("tensor<").skip(1).map(|rest| parse_type(rest.split('>').next()?)).collect()
}

fn parse_type(text: &str) -> Option<Type> {
    let text = text.split(',').next()?;
    let mut dims = Vec::new();
    let mut rest = text;
    while let Some((dim, tail)) = rest.split_once('x') {
        let Ok(dim) = dim.parse() else { break };
        dims.push(dim);
        rest = tail;
    }
    Some(Type { element: element(rest)?, dims })
}

fn element(name: &str) -> Option<ElementType> {
    Some(match name {
        "i1" => ElementType::Pred,
        "i8" => ElementType::S8,
        "i16" => ElementType::S16,
        "i32" => ElementType::S32,
        "i64" => ElementType::S64,
        "ui8" => ElementType::U8,
        "ui16" => ElementType::U16,
        "ui32" => ElementType::U32,
        "ui64" => ElementType::U64,
        "f16" => ElementType::F16,
        "bf16" => ElementType::Bf16,
        "f32" => ElementType::F32,
        "f64" => ElementType::F64,
        "complex<f32" => ElementType::C64,
        "complex<f64" => ElementType::C128,
        "f8E4M3FN" => ElementType::F8E4M3Fn,
        "f8E5M2" => ElementType::F8E5M2,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_types_and_returned_inputs() {
        let text = "module @m {\n  func.func public @main(%a: tensor<2x3xf32> {tf.aliasing_output = 0 : i32}, \
                    %b: tensor<i64>) -> (tensor<i64>, tensor<2x3xf32> {x = \"y\"}) {\n    \
                    %r = stablehlo.add %a, %a : tensor<2x3xf32>\n    \
                    return %b, %r : tensor<i64>, tensor<2x3xf32>\n  }\n}";
        let matrix = Type { element: ElementType::F32, dims: vec![2, 3] };
        let scalar = Type { element: ElementType::S64, dims: vec![] };
        assert_eq!(
            Program::parse(text),
            Some(Program {
                inputs: vec![matrix.clone(), scalar.clone()],
                outputs: vec![Output { ty: scalar, input: Some(1) }, Output { ty: matrix, input: None }],
            })
        );
    }

    #[test]
    fn a_single_result_needs_no_parentheses() {
        let text = "func.func @main(%x: tensor<4xbf16>) -> tensor<4xbf16> { \n return %x : tensor<4xbf16> \n }";
        let program = Program::parse(text);
        assert_eq!(program.map(|p| p.outputs[0].input), Some(Some(0)));
    }

    #[test]
    fn nonsense_is_no_program() {
        assert_eq!(Program::parse("this is no module"), None);
    }
}
