// The C ABI between the PyTorch shim (csrc/) and the Rust core (crates/tpu-capi).
// Plain data and functions only: the shim knows no PJRT and no StableHLO, the core knows no c10.
// Every function may be called from any thread, with or without the GIL, unless it says otherwise; none of them
// ever takes the GIL or unwinds. A function that can fail returns a TpuStatus; the text is in tpu_last_error().
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TpuStorage TpuStorage;  // a storage cell: current value of one c10::Storage
typedef struct TpuEvent TpuEvent;      // a point in the device's one in-order queue

enum TpuStatus {
  TPU_OK = 0,
  TPU_NEED_META = 1,  // signature never seen: run the op on Meta, tpu_define() the outcome, call again
  TPU_FALLBACK = 2,   // no lowering for these arguments: run the op on the CPU (text says why)
  TPU_ERROR = 3,
  TPU_PENDING = 4,    // a timed wait ran out, or tpu_call needs an answer of the device first; ask again
};

// What to raise. Matches PyTorch's own exception types.
enum TpuErrorKind {
  TPU_E_RUNTIME = 0,  // RuntimeError (user's mistake or device fault)
  TPU_E_VALUE = 1,
  TPU_E_TYPE = 2,
  TPU_E_INDEX = 3,
  TPU_E_NOT_IMPLEMENTED = 4,
  TPU_E_OUT_OF_MEMORY = 5,  // torch.OutOfMemoryError
  TPU_E_BUG = 6,            // RuntimeError, asks for a report
  TPU_E_LINALG = 7,         // torch.linalg.LinAlgError
};

// Text of this thread's last error (or fallback reason); valid until this thread's next call.
const char* tpu_last_error(int32_t* kind);

// ------------------------------------------------------------------ arguments
// dtype codes are c10::ScalarType's numeric values.
enum TpuScalarTag { TPU_S_BOOL = 0, TPU_S_INT = 1, TPU_S_DOUBLE = 2, TPU_S_COMPLEX = 3 };
typedef struct TpuScalar {
  uint8_t tag;
  uint64_t lo;  // bool/int64 as two's complement, or double bits (real part)
  uint64_t hi;  // double bits of the imaginary part
} TpuScalar;

enum TpuTensorFlags {
  TPU_T_WRAPPED_NUMBER = 1,
  TPU_T_CONJ = 2,
  TPU_T_NEG = 4,
  TPU_T_ABSENT = 8,  // an undefined tensor (None) in an argument or list
  TPU_T_HOST = 16,   // a 0-dim CPU tensor: `storage` is null, the value is in `host`
};
typedef struct TpuTensor {
  TpuStorage* storage;
  const int64_t* sizes;
  const int64_t* strides;  // in elements
  int64_t offset;          // in elements
  uint32_t ndim;
  uint8_t dtype;
  uint8_t flags;
  TpuScalar host;
} TpuTensor;

enum TpuArgKind {
  TPU_A_NONE = 0,
  TPU_A_TENSOR = 1,       // tensors[0]
  TPU_A_TENSOR_LIST = 2,  // tensors[0..n], entries may be ABSENT
  TPU_A_SCALAR = 3,       // at::Scalar: `scalar`
  TPU_A_SCALAR_LIST = 4,  // scalars[0..n]
  TPU_A_INT = 5,          // `i`; also ScalarType, Layout, MemoryFormat as their codes
  TPU_A_INT_LIST = 6,     // ints[0..n]; also bool[] as 0/1
  TPU_A_BOOL = 7,         // `i`
  TPU_A_DOUBLE = 8,       // `d`
  TPU_A_DOUBLE_LIST = 9,  // doubles[0..n]
  TPU_A_STRING = 10,      // str[0..n], UTF-8, not terminated
  TPU_A_DEVICE = 11,      // ignored by the core
  TPU_A_GENERATOR = 12,   // ints[0] = seed, ints[1] = offset (as u64 bits). Also appended LAST for a random op whose
                          // schema has no Generator argument (native_dropout)
};
typedef struct TpuArg {
  uint8_t kind;
  uint32_t n;
  union {
    int64_t i;
    double d;
    TpuScalar scalar;
    const TpuTensor* tensors;
    const TpuScalar* scalars;
    const int64_t* ints;
    const double* doubles;
    const char* str;
  };
} TpuArg;

// ------------------------------------------------------------------ the op table
uint32_t tpu_op_count(void);
const char* tpu_op_schema(uint32_t op);   // "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", static
// Facts of an op, as bits.
enum TpuOpFacts {
  TPU_OP_RANDOM = 1,      // consumes generator state
  TPU_OP_COUNTED = 2,     // some calls have results whose sizes are data: see tpu_call
  TPU_OP_LATE_SHAPE = 4,  // PyTorch's structured shape rule leaves the shape to the kernel
};
uint32_t tpu_op_facts(uint32_t op);
// Declares one callable form of an op. `writes[k]` is the index of the argument that output k is written into
// (the in-place `self`, or the `out=` arguments), or -1 for a fresh output; n_writes = number of outputs.
// Returns the form id to use in tpu_call. Called at load, before any tpu_call.
uint32_t tpu_register_form(uint32_t op, const char* full_name, const int32_t* writes, uint32_t n_writes);

// ------------------------------------------------------------------ one call
typedef struct TpuOut {
  TpuStorage* storage;  // a new reference the caller owns; null when this output is written into an argument
  void* address;        // unique and unreadable
  uint64_t nbytes;
  const int64_t* sizes;    // owned by the core; valid until this thread's next call into it
  const int64_t* strides;
  uint32_t ndim;
  uint8_t dtype;
  uint8_t absent;  // 1: undefined tensor (output masks)
  int32_t owner;   // of a graph's result: -1 a new storage, k >= 0 that of argument k, -2 - k that of result k
  int64_t offset;  // in elements; not 0 only for a graph's results
} TpuOut;
#define TPU_MAX_OUTS 8
typedef struct TpuResult {
  uint32_t n_outs;
  uint64_t rng_increment;  // add to the generator's offset when non-zero
  // Used when n_outs <= TPU_MAX_OUTS; ops with more outputs (lists) put them behind `more`.
  TpuOut outs[TPU_MAX_OUTS];
  const TpuOut* more;
} TpuResult;

// Records op form `form` on `args`; under strict eager it is also scheduled. Never blocks on the device except for
// back-pressure. TPU_NEED_META / TPU_FALLBACK record nothing. All `args` must already be on the device or TPU_T_HOST.
// TPU_PENDING: the results' sizes are data, and what was recorded finds them out. Wait for the first output, then call again
// with all outputs as tensors behind the arguments.
int32_t tpu_call(uint32_t form, const TpuArg* args, uint32_t n_args, TpuResult* result);
// The outcome of the op on Meta tensors for the same arguments: sizes, strides, dtype (storage is ignored; ABSENT allowed).
// `site` is "file.py:line" of the innermost Python frame outside torch, or "".
int32_t tpu_define(uint32_t form, const TpuArg* args, uint32_t n_args, const TpuTensor* outs, uint32_t n_outs,
                   const char* site);
// Between hold and release nothing is cut: what is recorded becomes one plan (foreach ops, composites). Nestable, per thread.
void tpu_hold(void);
void tpu_release(void);

// ------------------------------------------------------------------ graphs (torch.compile)
// Programs recorded once for each geometry of their inputs, and run as one plan. Recording is per thread: calls go into the
// graph instead of the queue, and a value asked for meanwhile is an error (TPU_E_NOT_IMPLEMENTED).
typedef struct TpuGraph TpuGraph;
TpuGraph* tpu_graph_new(void);
void tpu_graph_free(TpuGraph* graph);
// Starts recording. stands[k]: a new storage (nothing else is filled in) that stands for that of inputs[k]; when `filled`,
// also for one never written.
int32_t tpu_graph_record(const TpuTensor* inputs, uint32_t n, int32_t filled, TpuOut* stands);
void tpu_graph_abandon(void);
// Ends recording: the program gives `outs` and what was written into `stands`. The offsets are the default generator's.
int32_t tpu_graph_finish(TpuGraph* graph, const TpuTensor* stands, uint32_t n, const TpuTensor* outs, uint32_t n_outs,
                         uint64_t offset_before, uint64_t offset_after);
// Runs it; the results lie behind `more`. TPU_NEED_META: record it for these inputs, then call again.
int32_t tpu_graph_call(TpuGraph* graph, const TpuTensor* inputs, uint32_t n, const int64_t* seed_and_offset,
                       TpuResult* result);
// Programs that leave the process. Export ends recording: the program as JSON, valid until this thread's next text; null on
// failure. With `body` it ends a recording inside another: the name by which ops of control flow know it there. Load makes
// a new graph run such a program, through its executable or (n = 0) compiled anew. Compile gives an executable's bytes,
// valid until this thread's next; null on failure, TPU_E_NOT_IMPLEMENTED where the plugin writes none.
const char* tpu_graph_export(const TpuTensor* stands, uint32_t n, const TpuTensor* outs, uint32_t n_outs,
                             uint64_t offset_before, uint64_t offset_after, int32_t body);
int32_t tpu_graph_load(TpuGraph* graph, const char* program, const char* executable, size_t n);
const char* tpu_program_compile(const char* program, size_t* n);

// ------------------------------------------------------------------ storages and transfers
// A cell of `nbytes` without contents (reads give zeros). Null on failure (memory limit, address space, dead device).
TpuStorage* tpu_storage_new(uint64_t nbytes, void** address);
void tpu_storage_free(TpuStorage* storage);
// A new cell of `nbytes` holding the leading bytes of `old`. Null on failure.
TpuStorage* tpu_storage_resized(TpuStorage* old, uint64_t nbytes, void** address);
uint64_t tpu_storage_nbytes(const TpuStorage* storage);
// The live cell whose address is exactly `address`, or null. No new reference. (PyTorch's pickling of a storage wraps the
// bare address in a tensor of its own.)
TpuStorage* tpu_storage_find(const void* address);

// Host to device. `src` holds the elements of `dst` in dst's own dtype and in the order of dst's dense memory layout
// (if dst is non-overlapping and dense: its strides order; else contiguous order). Copied before returning.
int32_t tpu_upload(const TpuTensor* dst, const void* src, uint64_t nbytes);
// 1 if `dst` covers its storage densely, so that tpu_upload expects strides order, 0 if contiguous order.
int32_t tpu_is_whole(const TpuTensor* dst);
// Waits until the storage's current value is on the device, at most `timeout_ms` (<0: for ever). TPU_PENDING on time-out.
// TPU_ERROR if the value is poisoned.
int32_t tpu_wait(TpuStorage* storage, int32_t timeout_ms);
// Copies bytes [offset, offset+nbytes) of the storage to `dst`. Blocks for the transfer only when tpu_wait gave TPU_OK before.
int32_t tpu_download(TpuStorage* storage, uint64_t offset, uint64_t nbytes, void* dst);

// ------------------------------------------------------------------ device
// Starts the client. Called once, lazily, by the shim with the GIL released. `config` is JSON:
// {"plugin": path, "kind": "cpu"|"tpu"|"gpu", "cache_dir": str|null, "cache_bytes": int, "memory_limit": int|null,
//  "torch": version, "options": {name: value}}
int32_t tpu_start(const char* config, size_t n);
int32_t tpu_is_started(void);
// After fork in the child: every call but frees fails with a text that says what to do; frees do nothing.
void tpu_mark_forked(void);
// At interpreter exit: drains or drops queued work, never blocks long.
void tpu_shutdown(void);

int32_t tpu_synchronize(int32_t timeout_ms);  // everything recorded so far has run; TPU_PENDING on time-out
TpuEvent* tpu_event_record(void);             // after everything recorded so far
int32_t tpu_event_query(TpuEvent* event);     // 1 reached, 0 not yet
int32_t tpu_event_wait(TpuEvent* event, int32_t timeout_ms);
double tpu_event_elapsed_ms(TpuEvent* start, TpuEvent* end);  // both reached
void tpu_event_free(TpuEvent* event);

typedef struct TpuMemoryStats {
  // bytes: live device buffers of ours
  uint64_t current, peak, limit;          // limit 0: unknown
  uint64_t allocated_total, freed_total;  // bytes ever
  uint64_t active_count, allocation_count, oom_count, retry_count;
} TpuMemoryStats;
void tpu_memory_stats(TpuMemoryStats* out);
void tpu_memory_reset_peak(void);
void tpu_memory_reset_accumulated(void);
void tpu_empty_cache(void);
enum TpuEagerMode { TPU_MODE_STRICT = 0, TPU_MODE_FUSED = 1, TPU_MODE_DEBUG = 2 };
void tpu_set_eager_mode(int32_t mode);
int32_t tpu_get_eager_mode(void);
// float32 matmul precision: 0 highest, 1 high, 2 medium (torch.get_float32_matmul_precision)
void tpu_set_matmul_precision(int32_t precision);
void tpu_set_default_dtype(uint8_t dtype);  // torch.get_default_dtype()

// JSON text by topic: "cache" (plan cache counters), "device" (kind, platform, versions, attributes), "ops" (op table with
// facts and examples). Valid until this thread's next call.
const char* tpu_info(const char* topic);
uint64_t tpu_compile_count(void);
void tpu_clear_plan_cache(void);

// Implemented by the shim: PyInit in Rust calls it to build the module object (GIL held).
void* tpu_shim_init_module(void);

#ifdef __cplusplus
}
#endif
