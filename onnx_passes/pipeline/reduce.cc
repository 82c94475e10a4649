#include "onnx_passes/pipeline/reduce.h"

#include <onnx/shape_inference/implementation.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/types.h"
#include "platform/file.h"
#include "platform/process.h"

namespace onnx_train {
namespace {

using Names = std::set<std::string>;

void add_reads(const onnx::NodeProto& node, Names* names) {
  names->insert(node.input().begin(), node.input().end());
  for (const auto& attribute : node.attribute()) {
    for (const auto& inner : attribute.g().node()) add_reads(inner, names);
    for (const auto& output : attribute.g().output()) names->insert(output.name());
  }
}

template <typename Field, typename Keep>
void keep_if(Field* field, const Keep& keep) {
  field->erase(std::remove_if(field->begin(), field->end(), [&](const auto& item) { return !keep(item); }),
               field->end());
}

// Removes what neither outputs nor entry points need.
void prune(onnx::ModelProto* model) {
  onnx::GraphProto* graph = model->mutable_graph();
  Names live;
  for (const auto& output : graph->output()) live.insert(output.name());
  for (const auto& entry : model->training_info()) {
    for (const auto& node : entry.algorithm().node()) add_reads(node, &live);
    for (const auto& output : entry.algorithm().output()) live.insert(output.name());
    for (const auto& update : entry.update_binding()) live.insert(update.key());
  }
  std::vector<onnx::NodeProto> nodes;
  for (int i = graph->node_size() - 1; i >= 0; --i) {
    const auto& outputs = graph->node(i).output();
    if (std::none_of(outputs.begin(), outputs.end(), [&](const auto& name) { return live.count(name) > 0; })) continue;
    add_reads(graph->node(i), &live);
    nodes.push_back(graph->node(i));
  }
  graph->clear_node();
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) graph->add_node()->Swap(&*node);
  const auto is_live = [&](const auto& item) { return live.count(item.name()) > 0; };
  keep_if(graph->mutable_initializer(), is_live);
  keep_if(graph->mutable_input(), is_live);
  Names declared;  // otherwise than as a value of a node
  for (const auto& input : graph->input()) declared.insert(input.name());
  for (const auto& tensor : graph->initializer()) declared.insert(tensor.name());
  keep_if(graph->mutable_value_info(), [&](const auto& info) { return is_live(info) && !declared.count(info.name()); });
}

bool is_zero(const onnx::TensorProto& tensor) {
  return tensor.has_raw_data() && tensor.raw_data().find_first_not_of('\0') == std::string::npos;
}

// Writes zeros of the tensor's type and shape. False for types without a fixed number of bytes.
bool zero(onnx::TensorProto* tensor) {
  const auto dtype = static_cast<DType>(tensor->data_type());
  if (dtype == DType::kString || dtype == DType::kUndefined) return false;
  onnx::TensorProto zeros;
  zeros.set_name(tensor->name());
  zeros.set_data_type(tensor->data_type());
  *zeros.mutable_dims() = tensor->dims();
  const int64_t size = num_elements(Shape(tensor->dims().begin(), tensor->dims().end()));
  zeros.set_raw_data(std::string(static_cast<size_t>(size) * size_of(dtype), '\0'));
  tensor->Swap(&zeros);
  return true;
}

class Reducer {
 public:
  Reducer(onnx::ModelProto* model, const std::function<bool(const onnx::ModelProto&)>& fails, int64_t most_tries)
      : model_(*model), fails_(fails), most_(most_tries), is_valid_(is_valid(*model)) {}

  ReduceReport run() {
    report_.nodes_before = report_.nodes_after = model_.graph().node_size();
    ++report_.tries;
    if (!fails_(model_)) return report_;
    attempt([](auto* model) { return model->training_info_size() > 0 && (model->clear_training_info(), true); });
    attempt([](auto*) { return true; });  // without what nothing needs
    do {
      changed_ = false;
      drop_outputs();
      cut_nodes();
      zero_initializers();
      shrink_sizes();
    } while (changed_ && !report_.is_exhausted);
    report_.nodes_after = model_.graph().node_size();
    return report_;
  }

 private:
  static bool is_valid(const onnx::ModelProto& model) {
    try {
      check_proto(model);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  // Keeps the change if the model still fails. `change` returns whether it is possible.
  template <typename Change>
  bool attempt(const Change& change) {
    onnx::ModelProto candidate = model_;
    if (report_.is_exhausted || !change(&candidate)) return false;
    prune(&candidate);
    if (is_valid_ && !is_valid(candidate)) return false;
    report_.is_exhausted = report_.tries >= most_;
    if (report_.is_exhausted || (++report_.tries, !fails_(candidate))) return false;
    changed_ = changed_ || candidate.SerializeAsString() != model_.SerializeAsString();
    model_.Swap(&candidate);
    return true;
  }

  void drop_outputs() {
    for (int i = model_.graph().output_size() - 1; i >= 0; --i) {
      attempt([&](onnx::ModelProto* model) {
        model->mutable_graph()->mutable_output()->DeleteSubrange(i, 1);
        return model->graph().output_size() > 0;
      });
    }
  }

  // Half of all nodes, a quarter, ..., one.
  void cut_nodes() {
    for (int size = model_.graph().node_size() / 2; size > 0; size /= 2) {
      for (int first = model_.graph().node_size() - size; first >= 0; first -= size) {
        attempt([&](onnx::ModelProto* model) { return cut(model->mutable_graph(), first, size); });
        first = std::min(first, model_.graph().node_size());
      }
    }
  }

  // Inputs take the place of what the removed nodes gave to others. If no output remains, what they read is one.
  bool cut(onnx::GraphProto* graph, int first, int size) {
    onnx::ModelProto typed = model_;
    try {
      onnx::shape_inference::InferShapes(typed);
    } catch (const std::exception&) {  // what is known already has to do
    }
    Names made, read, removed, wanted;
    for (int i = 0; i < graph->node_size(); ++i) {
      const bool goes = i >= first && i < first + size;
      add_reads(graph->node(i), goes ? &wanted : &read);
      (goes ? removed : made).insert(graph->node(i).output().begin(), graph->node(i).output().end());
    }
    graph->mutable_node()->DeleteSubrange(first, size);
    keep_if(graph->mutable_output(), [&](const auto& output) { return removed.count(output.name()) == 0; });
    const bool ends = graph->output_size() == 0;
    for (const auto& info : typed.graph().value_info()) {
      if (removed.count(info.name()) && read.count(info.name())) *graph->add_input() = info;
      if (ends && made.count(info.name()) && wanted.count(info.name())) *graph->add_output() = info;
    }
    return graph->output_size() > 0;
  }

  void zero_initializers() {
    for (int i = 0; i < model_.graph().initializer_size(); ++i) {
      if (is_zero(model_.graph().initializer(i))) continue;
      attempt([&](onnx::ModelProto* model) { return zero(model->mutable_graph()->mutable_initializer(i)); });
    }
  }

  // One, wherever a size is: in declared types, and in initializers, which are zeros then.
  void shrink_sizes() {
    std::set<int64_t, std::greater<>> sizes;
    for_each_size(model_.mutable_graph(), [&](int64_t size) { return sizes.insert(size), size; });
    for (const int64_t size : sizes) {
      if (size < 2) continue;
      attempt([&](onnx::ModelProto* model) {
        for_each_size(model->mutable_graph(), [&](int64_t other) { return other == size ? 1 : other; });
        for (auto& tensor : *model->mutable_graph()->mutable_initializer()) {
          if (std::count(tensor.dims().begin(), tensor.dims().end(), size) == 0) continue;
          for (int64_t& dim : *tensor.mutable_dims()) dim = dim == size ? 1 : dim;
          if (!zero(&tensor)) return false;
        }
        return true;
      });
    }
  }

  template <typename F>
  static void for_each_size(onnx::GraphProto* graph, const F& f) {
    for (auto* values : {graph->mutable_input(), graph->mutable_output(), graph->mutable_value_info()}) {
      for (auto& value : *values) {
        if (!value.type().tensor_type().has_shape()) continue;
        for (auto& dim : *value.mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim()) {
          if (dim.has_dim_value()) dim.set_dim_value(f(dim.dim_value()));
        }
      }
    }
  }

  onnx::ModelProto& model_;
  const std::function<bool(const onnx::ModelProto&)>& fails_;
  const int64_t most_;
  const bool is_valid_;
  bool changed_ = false;
  ReduceReport report_;
};

// The exit status and the first line of stderr without digits.
std::pair<int, std::string> outcome(const std::string& command) {
  const auto [status, output] = platform::run_line(command);
  if (status < 0) fail("'", command, "' cannot be run");
  std::string text;
  for (const char c : output) {
    if (!std::isdigit(static_cast<unsigned char>(c))) text += c;
  }
  return {status, text.substr(0, text.find('\n'))};
}

}  // namespace

ReduceReport reduce(onnx::ModelProto* model, const std::function<bool(const onnx::ModelProto&)>& fails,
                    int64_t most_tries) {
  return Reducer(model, fails, most_tries).run();
}

ReduceReport reduce_file(const std::string& path, const std::string& output, const std::string& command,
                         int64_t most_tries) {
  namespace fs = std::filesystem;
  onnx::ModelProto model = load_proto(path);
  const std::string prefix = (fs::temp_directory_path() / "onnx-train-reduce-").string();
  const std::string folder = platform::make_temporary_folder(prefix);
  if (folder.empty()) fail(prefix, "XXXXXX: cannot be made");
  const std::shared_ptr<void> removal(nullptr, [&](void*) {
    std::error_code error;
    fs::remove_all(folder, error);
  });
  const auto run = [&](const onnx::ModelProto& candidate) {
    save_proto(candidate, folder + "/model.onnx");
    return outcome(concat(command, " ", folder, "/model.onnx"));
  };
  const auto expected = run(model);
  if (expected.first == 0) fail("'", command, "' does not fail on ", path, ", so there is nothing to keep");
  const ReduceReport report = reduce(
      &model, [&](const onnx::ModelProto& candidate) { return run(candidate) == expected; }, most_tries);
  save_proto(model, output);
  return report;
}

}  // namespace onnx_train
