#include "kernels/cuda/convolution/cudnn.h"

#include <algorithm>
#include <optional>

#include "kernels/cuda/choices/cudnn_graph.h"
#include "kernels/cuda/convolution/channel_bias.h"
#include "kernels/cuda/convolution/flipped_filters.h"
#include "kernels/cuda/support/conversions.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/geometry/indexing/strides.h"
#include "kernels/geometry/windows.h"
#include "kernels/place.h"

namespace onnx_train::cuda {
namespace {

// Ids of the plan's tensors: the node's inputs 0 and 1, its bias, and its output.
enum TensorId : int64_t { kInput0 = 1, kInput1, kBias, kOutput };

// A convolution as the library describes it. Equal descriptions share a plan.
struct Description {
  Direction direction;
  DType type;                  // type of all tensors but the bias, which is float32
  bool has_bias;               // the bias is added before the result is rounded
  bool channels_last;          // layout of x and y
  bool holds_tf32;             // operands hold TF32 numbers, or may be rounded to TF32
  bool deterministic;          // NodeSpec::deterministic
  Sizes x, w, y;               // batch or output channels, channels, spatial axes
  Sizes begin = {}, end = {};  // padding
  Sizes stride = {}, dilation = {};

  auto operator<=>(const Description&) const = default;  // NOLINT(modernize-use-nullptr): its 0 is no pointer
};

// How a node's operands and result are stored.
struct Storage {
  DType in, out;
  bool has_bias, tf32, deterministic;
};

Storage storage_of(const NodeSpec& spec, Direction direction) {
  return {spec.in_type(), spec.out_type(), has_bias(spec, direction), spec.tf32(), spec.deterministic()};
}

// Returns the padding at the end for which cuDNN counts `axis.out` windows: as much as at the beginning if possible,
// since more algorithms support it. Returns nothing if no padding fits, because elements remain that no window reads.
std::optional<int64_t> padding_at_end(const WindowAxis& axis) {
  const int64_t reach = (axis.kernel - 1) * axis.dilation + 1;
  const auto windows = [&](int64_t end) {
    const int64_t room = axis.in + axis.begin + end - reach;
    return room < 0 ? 0 : room / axis.stride + 1;
  };
  const int64_t least = std::max<int64_t>(0, (axis.out - 1) * axis.stride + reach - axis.begin - axis.in);
  for (const int64_t end : {axis.begin, least}) {
    if (windows(end) == axis.out) return end;
  }
  return std::nullopt;
}

// `type` is the type of operands and result.
std::optional<Description> describe(const Convolution& c, Direction direction, const Storage& storage, DType type,
                                    bool has_bias) {
  if (num_elements(c.x) == 0 || num_elements(c.w) == 0 || num_elements(c.y) == 0) return std::nullopt;
  Description d{.direction = direction,
                .type = type,
                .has_bias = has_bias,
                .channels_last = c.channels_last,
                .holds_tf32 = is_half(storage.in) || storage.tf32,
                .deterministic = storage.deterministic,
                .x = {c.x[0], c.x[1]},
                .w = {c.w[0], c.w[1]},
                .y = {c.y[0], c.y[1]}};
  const WindowGeometry axes = make_geometry(c.windows, c.x, c.y);
  for (size_t i = c.x.size() == 5 ? 0 : 1; i < axes.size(); ++i) {  // the library supports images of two or three axes
    const WindowAxis& axis = axes[i];
    const std::optional<int64_t> end = padding_at_end(axis);
    if (!end || axis.begin < 0) return std::nullopt;
    d.x.push_back(axis.in);
    d.w.push_back(axis.kernel);
    d.y.push_back(axis.out);
    d.begin.push_back(axis.begin);
    d.end.push_back(*end);
    d.stride.push_back(axis.stride);
    d.dilation.push_back(axis.dilation);
  }
  return d;
}

// Returns the convolution of dy that is the gradient of an input, or nothing: with steps of 1, x is as large as dy and
// its padding, which is what a window lacks of the padding of y.
std::optional<Description> as_convolution(const Description& d) {
  const auto is_one = [](int64_t step) { return step == 1; };
  if (d.direction != Direction::kInputGradient || d.x[1] != d.w[1] ||
      !std::all_of(d.stride.begin(), d.stride.end(), is_one))
    return std::nullopt;
  Description forward = d;
  forward.direction = Direction::kForward;
  std::swap(forward.x, forward.y);
  std::swap(forward.w[0], forward.w[1]);
  for (size_t i = 0; i < d.begin.size(); ++i) {
    const int64_t reach = (d.w[i + 2] - 1) * d.dilation[i];
    forward.begin[i] = reach - d.begin[i];
    forward.end[i] = d.x[i + 2] + reach - d.y[i + 2] - forward.begin[i];
    if (forward.begin[i] < 0 || forward.end[i] < 0) return std::nullopt;
  }
  return forward;
}

class ConvolutionGraph : public CudnnGraph {
 public:
  explicit ConvolutionGraph(const Description& d) : CudnnGraph(d.type, d.deterministic), d_(d) {}

  // Returns false if the library has no algorithm.
  bool make(cudnnHandle_t handle) {
    add_convolution();
    using fe::NumericalNote_t;
    std::vector<NumericalNote_t> left_out = {NumericalNote_t::WINOGRAD_TILE_6x6, NumericalNote_t::WINOGRAD_TILE_13x13};
    if (!d_.holds_tf32) {
      left_out.insert(left_out.end(), {NumericalNote_t::TENSOR_CORE, NumericalNote_t::DOWN_CONVERT_INPUTS});
    }
    if (d_.has_bias) return make_plans(handle, left_out);
    // Excludes algorithms that the library compiles at first use: each takes a second.
    return make_plans(handle, left_out, {fe::BehaviorNote_t::RUNTIME_COMPILATION});
  }

 private:
  void add_convolution() {
    const auto tensor = [&](TensorId id, const Sizes& shape) { return operand(id, {shape, strides(shape)}); };
    const auto windows = [&](auto attributes) {
      return attributes.set_pre_padding(d_.begin).set_post_padding(d_.end).set_stride(d_.stride).set_dilation(
          d_.dilation);
    };
    const auto write_output = [&](const TensorPointer& result, const Sizes& shape) {
      write(result, kOutput, {shape, strides(shape)});
    };
    switch (d_.direction) {
      case Direction::kForward:
        return write_output(with_bias(graph_.conv_fprop(tensor(kInput0, d_.x), tensor(kInput1, d_.w),
                                                        windows(fe::graph::Conv_fprop_attributes()))),
                            d_.y);
      case Direction::kInputGradient:
        return write_output(graph_.conv_dgrad(tensor(kInput0, d_.y), tensor(kInput1, d_.w),
                                              windows(fe::graph::Conv_dgrad_attributes())),
                            d_.x);
      case Direction::kWeightGradient:
        return write_output(graph_.conv_wgrad(tensor(kInput1, d_.y), tensor(kInput0, d_.x),
                                              windows(fe::graph::Conv_wgrad_attributes())),
                            d_.w);
    }
  }

  TensorPointer with_bias(const TensorPointer& y) {
    if (!d_.has_bias) return y;
    CudnnLayout layout{Sizes(d_.y.size(), 1), Sizes(d_.y.size(), d_.y[1])};
    layout.sizes[1] = d_.y[1];
    layout.strides[1] = 1;
    const TensorPointer bias = operand(kBias, layout);
    bias->set_data_type(fe::DataType_t::FLOAT);
    return graph_.pointwise(y, bias, fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD));
  }

  // Returns the strides of d_.x, d_.w or d_.y. Their shapes have the channels before the sizes in both layouts.
  Sizes strides(const Sizes& shape) const {
    if (!d_.channels_last || &shape == &d_.w) return row_major_strides(shape);
    Sizes memory = shape;
    std::rotate(memory.begin() + 1, memory.begin() + 2, memory.end());
    Sizes strides = row_major_strides(memory);
    std::rotate(strides.begin() + 1, strides.end() - 1, strides.end());
    return strides;
  }

  Description d_;
};

// How the library runs a node; the graph is null if it has no algorithm. No algorithm reads 16 bits and writes 32, and
// with channels first none rounds a result to 16 bits after adding a bias. Such a node runs as a float32 convolution of
// widened operands, which are exact in TF32, the form in which tensor cores read float32.
struct Plan {
  std::shared_ptr<ConvolutionGraph> graph;
  bool is_widened = false, adds_bias = false;
  bool flips = false;  // the filters: the gradient of the input is a convolution
};

Plan find_plan(const Convolution& c, Direction direction, const Storage& storage) {
  const auto find = [&](DType type, bool has_bias) {
    const auto description = describe(c, direction, storage, type, has_bias);
    return description ? shared_graph<ConvolutionGraph>(*description) : nullptr;
  };
  if (!is_half(storage.in)) return {find(storage.in, false)};
  if (storage.out == storage.in && !storage.has_bias) return {find(storage.in, false)};
  if (storage.out == storage.in && c.channels_last) {
    if (const auto graph = find(storage.in, true)) return {graph, false, true};
  }
  return {find(DType::kFloat, false), true};
}

// Returns the plan that makes the gradient of an input, which `plan` makes, a convolution; without a graph if there is
// none.
Plan flipped(const Plan& plan, const Convolution& c, Direction direction, const Storage& storage) {
  const DType type = plan.is_widened ? DType::kFloat : storage.in;
  const std::optional<Description> forward = as_convolution(*describe(c, direction, storage, type, false));
  return {forward ? shared_graph<ConvolutionGraph>(*forward) : nullptr, plan.is_widened, false, true};
}

}  // namespace

bool has_cudnn_plan(const NodeSpec& spec, const Convolution& c, Direction direction) {
  return find_plan(c, direction, storage_of(spec, direction)).graph != nullptr;
}

bool has_tensor_core_plans(const Convolution& c, Direction direction, DType type) {
  const auto writes = [&](DType out) {
    const Storage storage{type, out, /*has_bias=*/false, /*tf32=*/type == DType::kFloat, /*deterministic=*/true};
    return find_plan(c, direction, storage).graph != nullptr;
  };
  return writes(type) && writes(DType::kFloat);
}

namespace {

// Prepares a node for a plan of the graph, by its number.
Prepared prepare_plan(const NodeSpec& spec, const Convolution& c, const Plan& plan, const Storage& storage,
                      int64_t number) {
  const bool widens = plan.is_widened, narrows = widens && is_half(storage.out);
  const int64_t sizes[2] = {spec.in_size(0), spec.in_size(1)};
  Workspace parts;
  const auto reserve = [&](size_t bytes) { return parts.reserve(bytes).offset; };
  const size_t scratch = reserve(plan.graph->workspace(number));
  const size_t wide[2] = {reserve(widens ? static_cast<size_t>(sizes[0]) * sizeof(float) : 0),
                          reserve(widens ? static_cast<size_t>(sizes[1]) * sizeof(float) : 0)};
  const DType type = widens ? DType::kFloat : storage.in;
  const size_t filters = reserve(plan.flips ? static_cast<size_t>(sizes[1]) * size_of(type) : 0);
  const size_t sums = reserve(narrows ? static_cast<size_t>(spec.out_size()) * sizeof(float) : 0);
  Shape shape = spec.out_shape();
  if (c.channels_last) shape = {spec.out_size() / shape.back(), shape.back()};
  const auto run = [=, label = spec.node().label(), filter_shape = spec.in_shape(1)](const Launch& launch) {
    char* const workspace = launch.scratch<char>();
    const void* inputs[2] = {launch.inputs[0], launch.inputs[1]};
    if (widens) {
      for (int i = 0; i < 2; ++i) {
        auto* const to = reinterpret_cast<float*>(workspace + wide[i]);
        widen(launch, storage.in, sizes[i], inputs[i], to);
        inputs[i] = to;
      }
    }
    if (plan.flips) {
      flip_filters(launch, filter_shape, type, inputs[1], workspace + filters);
      inputs[1] = workspace + filters;
    }
    void* const result = narrows ? workspace + sums : launch.outputs[0];
    std::unordered_map<int64_t, void*> addresses = {
        {kInput0, const_cast<void*>(inputs[0])}, {kInput1, const_cast<void*>(inputs[1])}, {kOutput, result}};
    if (plan.adds_bias) addresses[kBias] = const_cast<void*>(launch.inputs[2]);
    plan.graph->run(launch, label, number, std::move(addresses), workspace + scratch);
    if (storage.has_bias && !plan.adds_bias) {
      add_channel_bias(launch, shape, result, launch.inputs[2], storage.out, launch.outputs[0]);
    }
  };
  return {run, parts.bytes()};
}

}  // namespace

Prepared prepare_cudnn(const NodeSpec& spec, const Convolution& c, Direction direction) {
  const Storage storage = storage_of(spec, direction);
  const Plan plan = find_plan(c, direction, storage);
  std::vector<Form> forms;
  const auto add = [&](const Plan& of, const char* name) {
    add_plans(
        of.graph, name, [=](int64_t number) { return prepare_plan(spec, c, of, storage, number); }, &forms);
  };
  add(plan, "");
  if (has_choices() && direction == Direction::kInputGradient) {
    const Plan as_convolution = flipped(plan, c, direction, storage);
    if (as_convolution.graph) add(as_convolution, "as a convolution, ");
  }
  return fastest(spec, cudnn_library().description(), forms);
}

}  // namespace onnx_train::cuda
