// torch_tpu._C: what the Python package needs from the shim and the core.
#include <pthread.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/version.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "Allocator.h"
#include "Fallback.h"
#include "Form.h"
#include "Generator.h"
#include "Graph.h"
#include "Registration.h"
#include "Runtime.h"

namespace py = pybind11;

namespace tpu {
namespace {
std::map<std::string, uint64_t> memory_stats() {
  TpuMemoryStats m{};
  if (g_started.load()) tpu_memory_stats(&m);
  return {{"current", m.current}, {"peak", m.peak}, {"limit", m.limit}, {"allocated_total", m.allocated_total},
          {"freed_total", m.freed_total}, {"active_count", m.active_count}, {"allocation_count", m.allocation_count},
          {"oom_count", m.oom_count}, {"retry_count", m.retry_count}};
}

std::string info(const std::string& topic) {
  const char* text = tpu_info(topic.c_str());
  if (text == nullptr) raise_last_error();
  return text;
}

// The default generator as one Python object for ever, so that `is` holds.
py::object default_generator_object() {
  static PyObject* const object = THPGenerator_initDefaultGenerator(default_generator());
  return py::reinterpret_borrow<py::object>(object);
}

void register_everything() {
  static bool done = false;
  if (done) return;
  done = true;
  register_allocators();
  register_guard();
  register_hooks();
  register_structural();
  register_shadow();
  register_forms();
  register_sparse();
  register_fallback();
  register_autocast();
  pthread_atfork(nullptr, nullptr, [] { tpu_mark_forked(); });
}

// pybind11 knows nothing of c10's exceptions: wrap each function so that Python sees PyTorch's.
template <class F>
void def(py::module_& m, const char* name, F function) {
  m.def(name, torch::wrap_pybind_function(std::function(function)));
}

void bind(py::module_& m) {
  using Tensors = std::vector<at::Tensor>;
  const auto method = [](auto f) { return torch::wrap_pybind_function(std::function(f)); };
  py::class_<Graph>(m, "Graph")
      .def(py::init<>())
      .def("record", method([](Graph& g, const Tensors& inputs) { return g.record(inputs, false); }))
      .def("record_filled", method([](Graph& g, const Tensors& inputs) { return g.record(inputs, true); }))
      .def("text", method([](Graph& g, const Tensors& in, const Tensors& outs) { return g.text(in, outs, false); }))
      .def("body", method([](Graph& g, const Tensors& in, const Tensors& outs) { return g.text(in, outs, true); }))
      .def("load", method([](Graph& g, std::string program, std::string executable) {
        py::gil_scoped_release nogil;
        g.load(program, executable);
      }))
      .def("finish", method([](Graph& g, const Tensors& stands, const Tensors& outs) { g.finish(stands, outs); }))
      .def("abandon", method([](Graph& g) { g.abandon(); }))
      .def("__call__", method([](const Graph& g, const Tensors& inputs) { return g.call(inputs); }));

  def(m, "start", [] { ensure_started(); });
  def(m, "is_started", [] { return g_started.load(); });
  def(m, "shutdown", [] {
    py::gil_scoped_release nogil;
    tpu_shutdown();
  });
  def(m, "synchronize", [] { synchronize(); });
  def(m, "set_available", [](bool available) { set_available(available); });
  def(m, "set_library_dirs", [](std::string torch_dir, std::string own_dir) { set_library_dirs(torch_dir, own_dir); });

  def(m, "set_eager_mode", [](int mode) { tpu_set_eager_mode(mode); });
  def(m, "get_eager_mode", [] { return tpu_get_eager_mode(); });
  def(m, "hold", [] { tpu_hold(); });
  def(m, "release", [] { tpu_release(); });

  def(m, "info", [](std::string topic) { return info(topic); });
  def(m, "compile", [](std::string program) {
    std::string executable;
    {
      py::gil_scoped_release nogil;
      executable = Graph::compile(program);
    }
    return py::bytes(executable);
  });
  def(m, "compile_count", [] { return tpu_compile_count(); });
  def(m, "clear_plan_cache", [] { tpu_clear_plan_cache(); });

  def(m, "memory_stats", [] { return memory_stats(); });

  def(m, "default_generator", [] { return default_generator_object(); });

  def(m, "fallbacks", [] { return fallback_counts(); });
  def(m, "reset_fallbacks", [] { reset_fallback_counts(); });
  def(m, "_unmatched_ops", [] { return unmatched_ops(); });
  def(m, "_schema_mismatches", [] { return schema_mismatches(); });
  def(m, "_forms", [] { return form_names(); });
  m.attr("built_for") = TORCH_VERSION;
  def(m, "_python_site", [] { return python_site(); });
}
}  // namespace
}  // namespace tpu

extern "C" __attribute__((visibility("default"))) void* tpu_shim_init_module(void) {
  static PyModuleDef definition;
  try {
    auto m = py::module_::create_extension_module("torch_tpu._C", nullptr, &definition);
    tpu::register_everything();
    tpu::bind(m);
    return m.release().ptr();
  } catch (const py::error_already_set& error) {
    py::set_error(PyExc_ImportError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ImportError, error.what());
  }
  return nullptr;
}
