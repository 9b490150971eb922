// Graphs of torch.compile: recorded through the ordinary kernels on stand-ins of the inputs, then run in one call.
#include "Graph.h"

#include "Arguments.h"
#include "Generator.h"

namespace tpu {
namespace {
using Described = c10::SmallVector<TpuTensor, 32>;

Described describe(const std::vector<at::Tensor>& tensors) {
  Described all(tensors.size());
  for (size_t k = 0; k < tensors.size(); ++k) {
    if (tensors[k].device().type() != kDevice) raise_device_mismatch(tensors[k]);
    fill_device_tensor(all[k], tensors[k].unsafeGetTensorImpl());
  }
  return all;
}

Generator& generator() { return *generator_or_default(std::nullopt); }

void prepare() {
  ensure_started();
  sync_default_dtype();
  sync_matmul_precision();
}
}  // namespace

Graph::Graph() : graph_(tpu_graph_new()) {
  if (graph_ == nullptr) raise_last_error();
}

Graph::~Graph() { tpu_graph_free(graph_); }

std::vector<at::Tensor> Graph::record(const std::vector<at::Tensor>& inputs, bool filled) {
  prepare();
  const Described described = describe(inputs);
  std::vector<TpuOut> outs(inputs.size());
  check(tpu_graph_record(described.data(), static_cast<uint32_t>(inputs.size()), filled, outs.data()));
  offset_ = generator().get_offset();
  std::vector<at::Tensor> stands;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const TpuTensor& like = described[k];
    outs[k].sizes = like.sizes;
    outs[k].strides = like.strides;
    outs[k].ndim = like.ndim;
    outs[k].dtype = like.dtype;
    outs[k].offset = like.offset;
    stands.push_back(wrap(outs[k]));
    if (inputs[k].is_conj()) stands.back()._set_conj(true);
    if (inputs[k].is_neg()) stands.back()._set_neg(true);
  }
  return stands;
}

void Graph::finish(const std::vector<at::Tensor>& stands, const std::vector<at::Tensor>& outs) {
  const Described in = describe(stands), out = describe(outs);
  const uint64_t after = generator().get_offset();
  generator().set_offset(offset_);
  check(tpu_graph_finish(graph_, in.data(), static_cast<uint32_t>(in.size()), out.data(),
                         static_cast<uint32_t>(out.size()), offset_, after));
}

std::string Graph::text(const std::vector<at::Tensor>& stands, const std::vector<at::Tensor>& outs, bool body) {
  const Described in = describe(stands), out = describe(outs);
  const uint64_t after = generator().get_offset();
  generator().set_offset(offset_);
  const char* text = tpu_graph_export(in.data(), in.size(), out.data(), out.size(), offset_, after, body);
  if (text == nullptr) raise_last_error();
  return text;
}

void Graph::load(const std::string& program, const std::string& executable) {
  ensure_started();
  check(tpu_graph_load(graph_, program.c_str(), executable.data(), executable.size()));
}

std::string Graph::compile(const std::string& program) {
  ensure_started();
  size_t n = 0;
  const char* bytes = tpu_program_compile(program.c_str(), &n);
  if (bytes == nullptr) raise_last_error();
  return std::string(bytes, n);
}

void Graph::abandon() {
  tpu_graph_abandon();
  generator().set_offset(offset_);
}

std::optional<std::vector<at::Tensor>> Graph::call(const std::vector<at::Tensor>& inputs) const {
  prepare();
  const Described described = describe(inputs);
  TpuResult result;
  {
    Generator& drawn = generator();
    std::lock_guard<std::mutex> lock(drawn.mutex_);
    const int64_t state[2] = {static_cast<int64_t>(drawn.current_seed()), static_cast<int64_t>(drawn.get_offset())};
    const int32_t status =
        tpu_graph_call(graph_, described.data(), static_cast<uint32_t>(described.size()), state, &result);
    if (status == TPU_NEED_META) return std::nullopt;
    check(status);
    drawn.set_offset(drawn.get_offset() + result.rng_increment);
  }
  std::vector<at::Tensor> outs;
  outs.reserve(result.n_outs);
  for (uint32_t k = 0; k < result.n_outs; ++k) {
    const TpuOut& out = result.more[k];
    if (out.owner == -1) {
      outs.push_back(wrap(out));
    } else {
      outs.push_back(wrap_over(out.owner >= 0 ? inputs[out.owner].storage() : outs[-2 - out.owner].storage(), out));
    }
  }
  return outs;
}
}  // namespace tpu
