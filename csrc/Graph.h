// One graph of torch.compile; see tpu_graph_record in capi.h.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "Runtime.h"

namespace tpu {
class Graph {
 public:
  Graph();
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Until finish, text or abandon, this thread's ops are recorded. Gives a stand-in for each input.
  std::vector<at::Tensor> record(const std::vector<at::Tensor>& inputs, bool filled);
  void finish(const std::vector<at::Tensor>& stands, const std::vector<at::Tensor>& outs);
  void abandon();
  // torch_tpu.aot, and bodies of control flow; see tpu_graph_export.
  std::string text(const std::vector<at::Tensor>& stands, const std::vector<at::Tensor>& outs, bool body);
  void load(const std::string& program, const std::string& executable);
  static std::string compile(const std::string& program);
  // Runs what was recorded for inputs of this geometry; nothing when nothing was.
  std::optional<std::vector<at::Tensor>> call(const std::vector<at::Tensor>& inputs) const;

 private:
  TpuGraph* graph_;
  uint64_t offset_ = 0;  // of the default generator, where recording began
};
}  // namespace tpu
