#include "onnx_passes/adapt/test_time_augmentation.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/copy_graph.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

constexpr const char* kOption = "--tta";
constexpr double kMostPixels = 4096;

// One way to look at a picture: the identity if nothing is set.
struct View {
  bool flip = false, vflip = false;
  int64_t shift = 0;  // pixels down and right; negative: up and left
};

std::vector<View> all_views(const TestTimeViews& views) {
  std::vector<View> all = {{}};
  const auto with = [&](const auto& change) {
    const std::vector<View> before = all;
    for (View view : before) {
      change(&view);
      all.push_back(view);
    }
  };
  if (views.shift != 0) {
    all.push_back({false, false, -views.shift});
    all.push_back({false, false, views.shift});
  }
  if (views.flip) with([](View* view) { view->flip = true; });
  if (views.vflip) with([](View* view) { view->vflip = true; });
  return all;
}

// The axis of the height of a picture, before that of the width; 0 if the input takes none.
int64_t height_axis(const Value& input) {
  if (!is_float(input.dtype()) || !input.has_rank() || input.rank() != 4) return 0;
  const auto is_channels = [&](size_t axis) {
    const Dim& size = (*input.type().dims)[axis];
    return size.known() && (size.value() == 1 || size.value() == 3);
  };
  return is_channels(1) ? 2 : is_channels(3) ? 1 : 0;
}

Var reversed(const Var& x, int64_t axis) {
  Builder& b = x.builder();
  return slice(x, b.ints({-1}), b.ints({std::numeric_limits<int64_t>::min()}), b.ints({axis}), b.ints({-1}));
}

// The part of the picture with reflected borders that is `shift` pixels before or after its middle.
Var shifted(const Var& x, int64_t height, int64_t shift) {
  Builder& b = x.builder();
  const int64_t border = std::abs(shift);
  for (const int64_t axis : {height, height + 1}) {
    const Dim& size = (*x.type().dims)[static_cast<size_t>(axis)];
    if (!size.known() || size.value() > border) continue;
    fail_as(ErrorCode::kUsage, kOption, ": shift(", border, ") leaves nothing of '", x.value()->name(), "', ",
            to_string(x.type()));
  }
  std::vector<int64_t> pads(8, 0);
  for (const int64_t axis : {height, height + 1}) {
    pads[static_cast<size_t>(axis)] = pads[static_cast<size_t>(axis) + 4] = border;
  }
  Var y = b.op("Pad", {x, b.ints(pads)}, {{"mode", "reflect"}});
  for (const int64_t axis : {height, height + 1}) {
    y = shift > 0 ? slice(y, 0, -2 * border, axis) : slice(y, 2 * border, std::numeric_limits<int64_t>::max(), axis);
  }
  return y;
}

Value* seen(const View& view, Value* input, Builder* b) {
  const int64_t height = height_axis(*input);
  if (height == 0) return input;
  Var x = b->var(input);
  if (view.shift != 0) x = shifted(x, height, view.shift);
  if (view.vflip) x = reversed(x, height);
  if (view.flip) x = reversed(x, height + 1);
  return x.value();
}

std::string shown_inputs(const Graph& graph) {
  std::string text;
  for (const Value* input : graph.inputs()) {
    if (input->is_initializer()) continue;
    text += concat(text.empty() ? "" : ", ", "'", input->name(), "' ", to_string(input->type()));
  }
  return text;
}

// All that is computed from pictures.
std::unordered_set<const Value*> computed_from_pictures(const Graph& graph) {
  std::unordered_set<const Value*> found;
  for (const Value* input : graph.inputs()) {
    if (height_axis(*input) != 0 && !input->is_initializer()) found.insert(input);
  }
  if (found.empty()) {
    fail_as(ErrorCode::kUsage, kOption, " takes pictures, float[N,C,H,W] or float[N,H,W,C] with 1 or 3 channels; the ",
            "model's inputs are ", shown_inputs(graph));
  }
  for (const Node* node = graph.first(); node; node = node->next()) {
    const auto reads = [&](const Value* input) { return input && found.contains(input); };
    // A node with a subgraph may read any value in it.
    if (!std::ranges::any_of(node->inputs(), reads) && node->subgraphs().empty()) continue;
    for (const Value* output : node->outputs()) {
      if (output) found.insert(output);
    }
  }
  return found;
}

bool is_within(const Graph* graph, const Graph* around) {
  while (graph && graph != around) graph = graph->parent();
  return graph != nullptr;
}

// Uses of the network's value in the algorithm of an entry point.
std::vector<Use> uses_in(const Graph& algorithm, const Value& value) {
  std::vector<Use> uses;
  for (const Use& use : value.uses()) {
    if (is_within(&use.node->graph(), &algorithm)) uses.push_back(use);
  }
  return uses;
}

void check_result(const Value& value) {
  const bool fits = is_float(value.dtype()) && value.has_rank() && (value.rank() == 1 || value.rank() == 2);
  if (fits) return;
  fail_as(ErrorCode::kUsage, kOption, " averages floats [batch] or [batch, classes]; '", value.name(), "' is ",
          to_string(value.type()),
          value.has_rank() && value.rank() > 2 ? ", whose positions would have to move back with their pictures" : "");
}

// What is read of the network and depends on its pictures, in the order of its nodes.
std::vector<Value*> results_of(const Graph& graph, const Graph* algorithm) {
  const auto computed = computed_from_pictures(graph);
  std::vector<Value*> results;
  for (const Node* node = graph.first(); node; node = node->next()) {
    for (Value* value : node->outputs()) {
      if (!value || !computed.contains(value)) continue;
      const bool is_read =
          algorithm ? algorithm->is_output(value) || !uses_in(*algorithm, *value).empty() : graph.is_output(value);
      if (!is_read) continue;
      check_result(*value);
      results.push_back(value);
    }
  }
  if (results.empty()) fail_as(ErrorCode::kUsage, kOption, ": nothing that is read is computed from the pictures");
  return results;
}

// `mean` takes the place of `value` among the graph's outputs, with its name and role.
void replace_output(Graph* graph, Value* value, Value* mean) {
  std::vector<Value*> outputs = graph->outputs();
  std::ranges::replace(outputs, value, mean);
  graph->set_outputs(outputs);
  const std::string name = value->name();
  graph->rename(value, graph->unique_name("view/" + name));
  graph->rename(mean, name);
  if (value->role()) mean->set_role(*value->role());
}

}  // namespace

std::vector<std::string> view_names() { return {"flip", "vflip", "shift"}; }

TestTimeViews parse_views(const std::string& text) {
  TestTimeViews views;
  if (text.empty()) return views;
  ExpressionReader reader(kOption, text);
  do {
    const Word word = reader.word("flip, vflip or shift(1)");
    bool* const flag = word.text == "flip" ? &views.flip : word.text == "vflip" ? &views.vflip : nullptr;
    if (!flag && word.text != "shift") {
      reader.fail_at(word.column, concat("there is no view '", word.text, "'; take flip, vflip or shift(1)",
                                         did_you_mean(word.text, view_names())));
    }
    if (flag ? *flag : views.shift != 0) reader.fail_at(word.column, concat("'", word.text, "' is given twice"));
    if (flag) {
      *flag = true;
      continue;
    }
    reader.expect('(', "before the number of pixels");
    const size_t column = reader.column();
    const double pixels = reader.number();
    if (!(pixels >= 1 && pixels <= kMostPixels && pixels == static_cast<double>(static_cast<int64_t>(pixels)))) {
      reader.fail_at(column, concat("shift takes a whole number of pixels from 1 to ", number_text(kMostPixels)));
    }
    views.shift = static_cast<int64_t>(pixels);
    reader.expect(')', "after the number of pixels");
  } while (reader.take(','));
  if (!reader.at_end()) reader.fail_at(reader.column(), "expected the end");
  return views;
}

void average_over_views(Model* model, const TestTimeViews& views, const EntryName& entry) {
  if (views.empty()) return;
  Graph& graph = *model->graph;
  Graph* algorithm = nullptr;
  if (entry != Entry::kPredict) algorithm = model->find_entry_point(entry)->algorithm.get();
  const std::vector<Value*> results = results_of(graph, algorithm);

  const std::vector<Node*> network = graph.nodes();  // as it is, before the copies
  Builder b(&graph);
  std::vector<std::vector<Var>> outputs;  // by result, of each view
  for (Value* result : results) outputs.push_back({b.var(result)});
  const std::vector<View> all = all_views(views);
  for (size_t i = 1; i < all.size(); ++i) {
    GraphCopy copy(&graph, nullptr, concat("view", i, "/"));
    for (Value* input : graph.inputs()) {
      if (!input->is_initializer()) copy.map(input, seen(all[i], input, &b));
    }
    for (const Node* node : network) {
      Node* made = copy.node(*node);
      if (!node->name().empty()) made->mutable_shell().set_name(concat("view", i, "/", node->name()));
    }
    for (size_t k = 0; k < results.size(); ++k) outputs[k].push_back(b.var(copy.of(results[k])));
  }
  for (size_t k = 0; k < results.size(); ++k) {
    b.set_name("mean/" + results[k]->name());
    Value* const mean = b.op("Mean", outputs[k]).value();
    if (!algorithm) {
      replace_output(&graph, results[k], mean);
      continue;
    }
    for (const Use& use : uses_in(*algorithm, *results[k])) use.node->set_input(use.index, mean);
    if (algorithm->is_output(results[k])) {
      std::vector<Value*> of_algorithm = algorithm->outputs();
      std::ranges::replace(of_algorithm, results[k], mean);
      algorithm->set_outputs(of_algorithm);
    }
  }
}

}  // namespace onnx_train
