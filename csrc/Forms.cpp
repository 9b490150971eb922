// At load: each op of the core's table meets the dispatcher. The in-place, mutable and out= overloads are found by
// comparing schemas, never by a list of names, and every form gets the one boxed kernel.
#include "Form.h"

#include <ATen/native/Resize.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <sstream>
#include <unordered_map>

#include "Registration.h"

namespace tpu {
namespace {
using c10::Argument;
using c10::FunctionSchema;
using c10::OperatorHandle;

std::vector<std::string> g_unmatched;
std::vector<std::string> g_mismatches;
std::unordered_map<std::string, std::unique_ptr<Form>> g_forms;

// All overloads of each base name ("aten::add" -> add.Tensor, add.out, ...).
using Overloads = std::unordered_map<std::string, std::vector<OperatorHandle>>;
const Overloads& overloads() {
  static const Overloads all = [] {
    Overloads out;
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      if (auto op = dispatcher.findSchema(name)) out[name.name].push_back(*op);
    }
    return out;
  }();
  return all;
}

bool is_written(const Argument& a) { return a.alias_info() != nullptr && a.alias_info()->isWrite(); }
bool is_count(const Argument& a) { return a.type()->str() == "int"; }
bool is_out(const Argument& a) { return a.kwarg_only() && is_written(a); }
bool any(const FunctionSchema& schema, bool (*is)(const Argument&)) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), is);
}

// What says how a new tensor is made; an out= form has none of it.
bool is_factory(const Argument& a) {
  return a.name() == "dtype" || a.name() == "layout" || a.name() == "device" || a.name() == "pin_memory";
}

// The same arguments but for the form's outs, which come last, and the functional's factory arguments.
bool same_arguments(const FunctionSchema& functional, const FunctionSchema& form) {
  auto a = functional.arguments();
  const auto& b = form.arguments();
  const size_t outs = std::count_if(b.begin(), b.end(), is_out);
  if (outs > 0)
    while (!a.empty() && a.size() + outs > b.size() && is_factory(a.back())) a.pop_back();
  return a.size() + outs == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
           return x.name() == y.name() && *x.real_type() == *y.real_type() && !is_out(y);
         });
}

struct Kernel final : c10::OperatorKernel {
  explicit Kernel(const Form* form) : form(form) {}
  void operator()(const OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) { call_form(*form, stack); }
  const Form* form;
};

// Holds the plan open around PyTorch's own composite kernel, so that all it records becomes one plan. That kernel is
// reached under a backend key nobody registers these ops for, whose table entry is therefore the composite one.
struct HoldKernel final : c10::OperatorKernel {
  struct Hold {
    Hold() { tpu_hold(); }
    ~Hold() { tpu_release(); }
  };
  void operator()(const OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    Hold hold;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::IPU), stack);
  }
};

// Makes results whose sizes only data tell afresh and copies them into the out= arguments.
struct OutKernel final : c10::OperatorKernel {
  explicit OutKernel(const Form* functional) : functional(functional) {}
  void operator()(const OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const size_t base = stack->size() - (op.schema().arguments().size() - functional->n_args);
    const torch::jit::Stack outs(stack->begin() + base, stack->end());
    stack->resize(base);
    call_form(*functional, stack);
    for (size_t k = 0; k < outs.size(); ++k) {
      const at::Tensor &to = outs[k].toTensor(), &from = (*stack)[stack->size() - outs.size() + k].toTensor();
      TORCH_CHECK(to.scalar_type() == from.scalar_type(), op.schema().name(),
                  ": Expected out tensor to have scalar type ", from.scalar_type(), " but got ", to.scalar_type());
      at::native::resize_output(to, from.sizes());
      to.copy_(from);
    }
    std::copy(outs.begin(), outs.end(), stack->end() - outs.size());
  }
  const Form* functional;
};

torch::Library& library() {
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  return aten;
}

// Ops that only compiled graphs have (control flow).
torch::Library& own_library() {
  static torch::Library own(torch::Library::DEF, "tpu", std::nullopt, __FILE__, __LINE__);
  return own;
}

template <class K>
void implement(const std::string& name, const Form* form) {
  auto kernel = torch::CppFunction::makeFromBoxedFunctor(std::make_unique<K>(form));
  if (name.rfind("aten::", 0) == 0) return void(library().impl(name.substr(6).c_str(), std::move(kernel)));
  own_library().impl(name.c_str(), torch::dispatch(c10::DispatchKey::PrivateUse1, std::move(kernel)));
}

// Builds a form of the op `full` if its arguments and outputs can cross; empty text, or why not. `updates`: the op that
// was declared writes arguments beside its results (running statistics); the core knows which, no outputs here.
std::string add_form(uint32_t op_id, const std::string& full, size_t n_outputs, bool updates,
                     const OperatorHandle& op) {
  const FunctionSchema& schema = op.schema();
  const std::string name = c10::toString(op.operator_name());
  if (g_forms.count(name) != 0) return {};
  auto form = std::make_unique<Form>(op);
  form->name = name;
  form->n_args = static_cast<uint32_t>(schema.arguments().size());
  const uint32_t facts = tpu_op_facts(op_id);
  form->random = (facts & TPU_OP_RANDOM) != 0;
  form->late_shape = (facts & TPU_OP_LATE_SHAPE) != 0;
  // a name too many costs a look at the precision switch, no more
  for (const char* part : {"mm", "mv", "dot", "conv", "linear", "attention", "former", "cdist", "lstm", "gru", "rnn"})
    form->may_contract |= name.find(part) != std::string::npos;
  for (const char* part : {"fill", "zero", "index_put"}) form->may_repeat |= name.find(part) != std::string::npos;
  form->is_out = any(schema, is_out);
  for (uint32_t k = 0; k < form->n_args; ++k) {
    const Argument& argument = schema.arguments()[k];
    form->travel.push_back(travel_of(argument));
    if (form->travel.back() == Travel::kUnknown)
      return "argument " + argument.name() + " has a type that does not cross";
    if (form->travel.back() == Travel::kGenerator) form->generator_arg = static_cast<int32_t>(k);
    if (!is_written(argument)) continue;
    form->written.push_back(static_cast<int32_t>(k));
  }
  for (const Argument& ret : schema.returns()) {
    form->returns.push_back(is_count(ret) ? kZero : written_argument(schema, ret));
    if (form->returns.back() != kFresh) continue;
    form->returns_list = ret.type()->str() == "Tensor[]" && schema.returns().size() == 1;
    if (!form->returns_list && ret.type()->str() != "Tensor") return "it returns " + ret.type()->str();
    form->writes.push_back(-1);
  }
  for (const int32_t k : form->written)
    if (!updates || is_out(schema.arguments()[k])) form->writes.push_back(k);
  if (form->writes.size() != n_outputs)
    return name + " has " + std::to_string(form->writes.size()) + " outputs, the functional op " +
           std::to_string(n_outputs);
  form->id =
      tpu_register_form(op_id, form->name.c_str(), form->writes.data(), static_cast<uint32_t>(form->writes.size()));

  // A kernel of ours takes the derivative of an implicit composite away, unless it has a formula of its own.
  const bool composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                         !op.hasKernelForDispatchKey(c10::DispatchKey::Autograd);
  const bool taken = op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
  if (!composite && !taken && (schema.name().rfind("aten::", 0) == 0 || schema.name().rfind("tpu::", 0) == 0)) {
    const Form* afresh = form->is_out && (facts & TPU_OP_COUNTED) != 0 ? find_form(full) : nullptr;
    afresh != nullptr ? implement<OutKernel>(name, afresh) : implement<Kernel>(name, form.get());
  } else if (composite) {
    g_unmatched.push_back(name + ": composite, so no kernel is registered");
  }
  g_forms.emplace(name, std::move(form));
  return {};
}

// Arguments and return types, without alias annotations.
std::string normal_text(const FunctionSchema& schema) {
  std::ostringstream out;
  for (const Argument& argument : schema.arguments()) {
    out << (argument.kwarg_only() ? "*" : "") << argument.real_type()->str() << " " << argument.name();
    if (argument.default_value().has_value()) out << "=" << *argument.default_value();
    out << ", ";
  }
  out << "->";
  for (const Argument& ret : schema.returns()) out << " " << ret.real_type()->str();
  return out.str();
}

void add_op(uint32_t op_id) {
  std::string text = tpu_op_schema(op_id);
  if (text.substr(0, text.find('(')).find("::") == std::string::npos) text = "aten::" + text;
  const std::string full = text.substr(0, text.find('('));
  std::optional<FunctionSchema> declared;
  try {
    declared.emplace(torch::jit::parseSchema(text));
  } catch (const std::exception& error) {
    g_mismatches.push_back(full + ": cannot be parsed: " + error.what());
    return;
  }
  const std::string& base = declared->name();
  if (base.rfind("tpu::", 0) == 0) own_library().def(text.c_str());
  const size_t n_outputs = std::ranges::count_if(declared->returns(), std::not_fn(is_count));
  bool updates = false, found = false;
  std::string why = "this torch has no such operator";
  const auto try_form = [&](const OperatorHandle& op) {
    const std::string reason = add_form(op_id, full, n_outputs, updates, op);
    reason.empty() ? void(found = true) : void(why = reason);
  };

  if (auto functional = c10::Dispatcher::singleton().findSchema(declared->operator_name())) {
    if (normal_text(*declared) != normal_text(functional->schema()))
      g_mismatches.push_back(full + ": table " + normal_text(*declared) + " | torch " +
                             normal_text(functional->schema()));
    updates = any(functional->schema(), is_written);
    if (!updates) try_form(*functional);
  }
  std::vector<std::string> names{base, base + "_"};
  // names of writing forms: __iadd__ of __add__, add_ of add_functional, add and add_ of _add
  if (base.ends_with("_functional")) names.push_back(base.substr(0, base.size() - 11) + "_");
  if (const std::string rest = base.substr(std::min<size_t>(base.size(), 7)); base.starts_with("aten::__"))
    names.push_back("aten::__i" + rest.substr(1));
  else if (base.starts_with("aten::_"))
    names.insert(names.end(), {"aten::" + rest, "aten::" + rest + "_"});
  for (const std::string& name : names) {
    const auto group = overloads().find(name);
    if (group == overloads().end()) continue;
    for (const OperatorHandle& op : group->second) {
      const FunctionSchema& schema = op.schema();
      if (any(schema, is_written) && same_arguments(*declared, schema)) try_form(op);
    }
  }
  if (!found) g_unmatched.push_back(full + ": " + why);
}
}  // namespace

int32_t written_argument(const FunctionSchema& schema, const Argument& ret) {
  if (!is_written(ret)) return -1;
  for (size_t k = 0; k < schema.arguments().size(); ++k) {
    const Argument& a = schema.arguments()[k];
    if (is_written(a) && a.alias_info()->beforeSets() == ret.alias_info()->beforeSets()) return static_cast<int32_t>(k);
  }
  return -1;
}

const Form* find_form(const std::string& name) {
  const auto found = g_forms.find(name);
  return found == g_forms.end() ? nullptr : found->second.get();
}

std::vector<std::string> form_names() {
  std::vector<std::string> out;
  for (const auto& [name, form] : g_forms) out.push_back(name);
  return out;
}

const std::vector<std::string>& unmatched_ops() { return g_unmatched; }
const std::vector<std::string>& schema_mismatches() { return g_mismatches; }

void register_forms() {
  for (uint32_t op = 0; op < tpu_op_count(); ++op) add_op(op);
  for (const auto& [base, group] : overloads()) {
    if (base.rfind("aten::_foreach_", 0) != 0) continue;
    for (const OperatorHandle& op : group) {
      if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
          !op.hasKernelForDispatchKey(c10::DispatchKey::IPU) &&
          !op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1))
        library().impl(c10::toString(op.operator_name()).substr(std::strlen("aten::")).c_str(),
                       torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HoldKernel>()));
    }
  }
}
}  // namespace tpu
