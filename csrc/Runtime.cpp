#include "Runtime.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include <mutex>
#include <optional>

namespace py = pybind11;

namespace tpu {
std::atomic<bool> g_started{false};

namespace {
std::atomic<bool> g_available{true};
std::string g_torch_dir = "/torch/";
std::string g_own_dir = "/torch_tpu/";

bool interpreter_alive() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsInitialized() && !Py_IsFinalizing();
#else
  return Py_IsInitialized() && !_Py_IsFinalizing();
#endif
}

// Lets go of the GIL if this thread holds it.
struct WithoutGil {
  std::optional<py::gil_scoped_release> release;
  WithoutGil() {
    if (interpreter_alive() && PyGILState_Check()) release.emplace();
  }
};

// Throws the Python exception that is set, in the form PyTorch's bindings hand back to Python.
[[noreturn]] void throw_python_error() {
  python_error error;
  error.persist();
  throw error;
}

void let_signals_through() {
  if (!interpreter_alive()) return;
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw_python_error();
}

template <class Poll>
void wait_with_signals(Poll poll) {
  int32_t status = poll(0);
  if (status == TPU_PENDING) {
    WithoutGil nogil;
    while ((status = poll(50)) == TPU_PENDING) let_signals_through();
    if (status != TPU_OK)  // the text is per thread and survives only until the next call
      raise_last_error();
    return;
  }
  check(status);
}

std::string config_from_python() {
  py::gil_scoped_acquire gil;
  PyObject* module = PyImport_ImportModule("torch_tpu._plugin");
  if (module == nullptr) throw_python_error();
  auto owned = py::reinterpret_steal<py::object>(module);
  auto text = py::reinterpret_steal<py::object>(PyObject_CallMethod(module, "config_json", nullptr));
  const char* utf8 = text ? PyUnicode_AsUTF8(text.ptr()) : nullptr;
  if (utf8 == nullptr) throw_python_error();
  return utf8;
}

thread_local bool t_starting = false;
struct Starting {
  Starting() { t_starting = true; }
  ~Starting() { t_starting = false; }
};
}  // namespace

void check_index(c10::DeviceIndex index) {
  TORCH_CHECK(index == -1 || index == 0, "tpu error: invalid device ordinal ", static_cast<int>(index),
              "; a process drives one tpu device, whose index is 0.");
}

void start_slowly() {
  static std::mutex mutex;
  TORCH_CHECK(!t_starting, "The tpu device was used while its own plugin configuration was being read.");
  WithoutGil nogil;
  std::lock_guard<std::mutex> lock(mutex);
  if (g_started.load(std::memory_order_acquire)) return;
  Starting mark;
  const std::string config = config_from_python();
  check(tpu_start(config.data(), config.size()));
  g_started.store(true, std::memory_order_release);
}

void raise_last_error() {
  int32_t kind = TPU_E_RUNTIME;
  const char* text = tpu_last_error(&kind);
  const std::string message = text && *text ? text : "unknown tpu error";
  switch (kind) {
    case TPU_E_VALUE: C10_THROW_ERROR(ValueError, message);
    case TPU_E_TYPE: C10_THROW_ERROR(TypeError, message);
    case TPU_E_INDEX: C10_THROW_ERROR(IndexError, message);
    case TPU_E_NOT_IMPLEMENTED: C10_THROW_ERROR(NotImplementedError, message);
    case TPU_E_OUT_OF_MEMORY: C10_THROW_ERROR(OutOfMemoryError, message);
    case TPU_E_LINALG: C10_THROW_ERROR(LinAlgError, message);
    case TPU_E_BUG: C10_THROW_ERROR(Error, message + "\nThis is a bug in torch-tpu-rs: please report these lines.");
    default: C10_THROW_ERROR(Error, message);
  }
}

void wait_ready(TpuStorage* storage) {
  wait_with_signals([=](int32_t ms) { return tpu_wait(storage, ms); });
}

void wait_event(TpuEvent* event) {
  wait_with_signals([=](int32_t ms) { return tpu_event_wait(event, ms); });
}

void synchronize() {
  if (g_started.load(std::memory_order_acquire)) wait_with_signals([](int32_t ms) { return tpu_synchronize(ms); });
}

void set_library_dirs(std::string torch_dir, std::string own_dir) {
  g_torch_dir = std::move(torch_dir);
  g_own_dir = std::move(own_dir);
}

std::string python_site() {
  if (!interpreter_alive()) return {};
  py::gil_scoped_acquire gil;
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    PyObject* name = reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename;
    const char* file = PyUnicode_AsUTF8(name);
    if (file == nullptr) {
      PyErr_Clear();
      return {};
    }
    const std::string path = file;
    if (path.rfind(g_torch_dir, 0) != 0 && path.rfind(g_own_dir, 0) != 0)
      return path + ":" + std::to_string(PyFrame_GetLineNumber(raw));
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return {};
}

void set_available(bool available) { g_available.store(available); }
bool is_available() { return g_available.load(); }

void sync_default_dtype() {
  static std::atomic<uint8_t> known{static_cast<uint8_t>(c10::ScalarType::Float)};
  const auto now = static_cast<uint8_t>(c10::get_default_dtype_as_scalartype());
  if (C10_UNLIKELY(known.load(std::memory_order_relaxed) != now) && known.exchange(now) != now)
    tpu_set_default_dtype(now);
}

void sync_matmul_precision() {
  static std::atomic<int> known{-1};
  const auto all = at::globalContext().float32Precision(at::Float32Backend::GENERIC, at::Float32Op::ALL);
  int now = all == at::Float32Precision::TF32 ? 1 : all == at::Float32Precision::BF16 ? 2 : 0;
  try {
    if (all == at::Float32Precision::NONE) now = static_cast<int>(at::globalContext().float32MatmulPrecision());
  } catch (const c10::Error&) {
    return;  // old and new precision switches mixed: PyTorch cannot say, so the last clear answer holds
  }
  if (known.load(std::memory_order_relaxed) != now && known.exchange(now) != now) tpu_set_matmul_precision(now);
}
}  // namespace tpu
