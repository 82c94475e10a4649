// The oneDNN side of products_alone: a matmul or a convolution built from a node's shapes, types and attributes.
#include "bench/onednn_alone.h"

#include <algorithm>
#include <cstring>
#include <dnnl.hpp>
#include <unordered_map>

#include "onnx_passes/operators/windows.h"

namespace onnx_train {
namespace {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;

constexpr const char *kGiven = "given", *kChosen = "chosen";

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

// The argument that a primitive writes.
int made_by(const dnnl::primitive_desc_base& desc) {
  for (int argument : {DNNL_ARG_DIFF_SRC, DNNL_ARG_DIFF_WEIGHTS}) {
    if (!desc.query_md(dnnl::query::exec_arg_md, argument).is_zero()) return argument;
  }
  return DNNL_ARG_DST;
}

// A primitive, and the reorders from and to the layouts in which its operands lie.
using Layouts = std::unordered_map<int, Desc>;

Contestant onednn(const char* name, const dnnl::primitive_desc_base& desc, const Layouts& lie = {}) {
  std::unordered_map<int, dnnl::memory> arguments;
  std::vector<std::pair<dnnl::memory, dnnl::memory>> before, after;
  for (int argument : {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST, DNNL_ARG_DIFF_SRC,
                       DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_BIAS, DNNL_ARG_DIFF_DST}) {
    const Desc memory = desc.query_md(dnnl::query::exec_arg_md, argument);
    if (memory.is_zero()) continue;
    const auto place = arguments.emplace(argument, dnnl::memory(memory, engine())).first;
    std::memset(place->second.get_data_handle(), 0x3c, memory.get_size());
    const auto lies = lie.find(argument);
    if (lies == lie.end() || lies->second == memory) continue;
    const dnnl::memory outside(lies->second, engine());
    std::memset(outside.get_data_handle(), 0x3c, lies->second.get_size());
    if (argument == made_by(desc)) {
      after.emplace_back(place->second, outside);
    } else {
      before.emplace_back(outside, place->second);
    }
  }
  std::vector<std::function<void(dnnl::stream&)>> steps;
  const auto add_reorder = [&](const std::pair<dnnl::memory, dnnl::memory>& copy) {
    steps.push_back([copy, reorder = dnnl::reorder(copy.first, copy.second)](dnnl::stream& stream) {
      reorder.execute(stream, const_cast<dnnl::memory&>(copy.first), const_cast<dnnl::memory&>(copy.second));
    });
  };
  for (const auto& copy : before) add_reorder(copy);
  steps.push_back([arguments, primitive = dnnl::primitive(desc.get())](dnnl::stream& stream) {
    primitive.execute(stream, arguments);
  });
  for (const auto& copy : after) add_reorder(copy);
  return {name, [steps, stream = dnnl::stream(engine())]() mutable {
            for (const auto& step : steps) step(stream);
          }};
}

dnnl::memory::data_type type_of(const Value& value) {
  return value.dtype() == DType::kBFloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

Desc any(const Shape& dims, const Value& value) { return {dims, type_of(value), Tag::any}; }

// A tensor with its axes in another order.
struct View {
  Shape dims, strides;

  View(const Shape& memory, const Shape& permutation) {
    Shape step(memory.size(), 1);
    for (size_t i = memory.size(); i-- > 1;) step[i - 1] = step[i] * memory[i];
    for (size_t i = 0; i < memory.size(); ++i) {
      const size_t axis = permutation.empty() ? i : static_cast<size_t>(permutation[i]);
      dims.push_back(memory[axis]);
      strides.push_back(step[axis]);
    }
  }
  size_t batch_axes() const { return dims.size() - 2; }
  int64_t batch() const { return num_elements({dims.begin(), dims.end() - 2}); }
  void erase(size_t axis) {
    dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis));
    strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(axis));
  }
  // The last batch axis becomes rows, where the matrices lie one after the other.
  bool lie_as_rows() const { return strides[batch_axes() - 1] == dims[batch_axes()] * strides[batch_axes()]; }
  void make_rows() {
    dims[batch_axes()] *= dims[batch_axes() - 1];
    erase(batch_axes() - 1);
  }
};

Shape inverse(const Shape& permutation) {
  Shape result(permutation.size());
  for (size_t i = 0; i < permutation.size(); ++i) result[static_cast<size_t>(permutation[i])] = static_cast<int64_t>(i);
  return result;
}

Shape transposed_if(bool transposed) { return transposed ? Shape{1, 0} : Shape{0, 1}; }

std::vector<Contestant> onednn_product(const Node& node) {
  const bool gemm = node.op().ends_with("Gemm");
  const auto permutation = [&](const char* name) { return node.attr(name, Shape{}); };
  const Value &va = *node.input(0), &vb = *node.input(1), &vy = *node.output();
  View a(va.type().shape(), gemm ? transposed_if(node.attr("transA", 0) != 0) : permutation("perm_a"));
  View b(vb.type().shape(), gemm ? transposed_if(node.attr("transB", 0) != 0) : permutation("perm_b"));
  View y(vy.type().shape(), inverse(permutation("perm_y")));
  const int64_t batch = y.batch(), m = a.dims[a.batch_axes()], k = a.dims.back(), n = b.dims.back();
  std::vector<Contestant> result;
  const auto add = [&](const char* name, const Desc& left, const Desc& right, const Desc& to, const Layouts& lie = {}) {
    const bool bias = gemm && node.input(2) && num_elements(node.input(2)->type().shape()) == n;
    const Desc row({1, n}, dnnl::memory::data_type::f32, Tag::ab);
    const auto desc = bias ? dnnl::matmul::primitive_desc(engine(), left, right, row, to)
                           : dnnl::matmul::primitive_desc(engine(), left, right, to);
    if (!std::string_view(desc.impl_info_str()).starts_with("ref")) result.push_back(onednn(name, desc, lie));
  };
  // Matrices that lie row after row, or column after column where a Gemm takes them transposed.
  const auto plain = [](const Shape& dims, const Value& value, bool transposed) -> Desc {
    const bool batched = dims.size() == 3;
    return {dims, type_of(value), batched ? Tag::abc : transposed ? Tag::ba : Tag::ab};
  };
  const auto add_chosen = [&](const Shape& left, const Shape& right, const Shape& to) {
    const bool trans_a = gemm && node.attr("transA", 0) != 0, trans_b = gemm && node.attr("transB", 0) != 0;
    add(kChosen, any(left, va), any(right, vb), any(to, vy),
        {{DNNL_ARG_SRC, plain(left, va, trans_a)},
         {DNNL_ARG_WEIGHTS, plain(right, vb, trans_b)},
         {DNNL_ARG_DST, plain(to, vy, false)}});
  };
  if (b.batch() == 1) {
    add_chosen({batch * m, k}, {k, n}, {batch * m, n});
    while (b.batch_axes() > 0) b.erase(0);
    while (a.batch_axes() > 0 && a.lie_as_rows() && y.lie_as_rows()) a.make_rows(), y.make_rows();
    while (b.batch_axes() < a.batch_axes())
      b.dims.insert(b.dims.begin(), 1), b.strides.insert(b.strides.begin(), k * n);
  } else if (a.batch() == b.batch()) {
    add_chosen({batch, m, k}, {batch, k, n}, {batch, m, n});
  }
  if (a.dims.size() == b.dims.size())
    add(kGiven, {a.dims, type_of(va), a.strides}, {b.dims, type_of(vb), b.strides}, {y.dims, type_of(vy), y.strides});
  return result;
}

std::vector<Contestant> onednn_convolution(const Node& node) {
  const bool last = is_channels_last(node);
  const bool to_x = node.op().ends_with("GradInput"), to_w = node.op().ends_with("GradWeight");
  const Value& vx = to_x ? *node.output() : *node.input(0);
  const Value& vw = to_w ? *node.output() : *node.input(1);
  const Value& vy = to_x ? *node.input(0) : to_w ? *node.input(1) : *node.output();
  const auto image = [&](const Value& value) {
    Shape shape = value.type().shape();
    if (last) std::rotate(shape.begin() + 1, shape.end() - 1, shape.end());
    return shape;
  };
  const Shape x = image(vx), y = image(vy);
  Shape w = vw.type().shape();
  Windows windows = *find_windows(node);
  windows.kernel.assign(w.begin() + 2, w.end());
  Shape gaps = windows.dilations, end;
  for (size_t i = 0; i < gaps.size(); ++i) {
    end.push_back((y[i + 2] - 1) * windows.strides[i] + gaps[i] * (windows.kernel[i] - 1) + 1 - x[i + 2] -
                  windows.pads_begin[i]);
    --gaps[i];
  }
  if (const int64_t group = node.attr("group", 1); group > 1) {
    w[0] /= group;
    w.insert(w.begin(), group);
  }
  std::vector<Contestant> result;
  for (const char* name : {kChosen, kGiven}) {
    const Tag tag = name == kChosen ? Tag::any : x.size() == 3 ? Tag::nwc : x.size() == 4 ? Tag::nhwc : Tag::ndhwc;
    const auto type = type_of(to_x ? vy : vx), made = type_of(*node.output());
    const auto direct = dnnl::algorithm::convolution_direct;
    const Desc dx(x, to_x ? made : type, tag), dw(w, to_w ? made : type, Tag::any),
        dy(y, to_x || to_w ? type : made, tag);
    const dnnl::convolution_forward::primitive_desc forward(engine(), dnnl::prop_kind::forward_training, direct,
                                                            {x, type, tag}, {w, type, Tag::any}, {y, type, tag},
                                                            windows.strides, gaps, windows.pads_begin, end);
    if (to_x) {
      result.push_back(
          onednn(name, dnnl::convolution_backward_data::primitive_desc(engine(), direct, dx, dw, dy, windows.strides,
                                                                       gaps, windows.pads_begin, end, forward)));
    } else if (to_w) {
      result.push_back(
          onednn(name, dnnl::convolution_backward_weights::primitive_desc(engine(), direct, dx, dw, dy, windows.strides,
                                                                          gaps, windows.pads_begin, end, forward)));
    } else {
      result.push_back(onednn(
          name, dnnl::convolution_forward::primitive_desc(engine(), dnnl::prop_kind::forward_training, direct, dx, dw,
                                                          dy, windows.strides, gaps, windows.pads_begin, end)));
    }
  }
  return result;
}

enum class Kind { kOther, kProduct, kConvolution };

Kind kind_of(const Node& node) {
  const std::string& op = node.op();
  const auto matrices = [](const Value* v) { return v->type().shape().size() >= 2; };
  if (op.ends_with("MatMul") || op.ends_with("Gemm"))
    return matrices(node.input(0)) && matrices(node.input(1)) ? Kind::kProduct : Kind::kOther;
  return op.ends_with("Conv") || op.ends_with("ConvGradInput") || op.ends_with("ConvGradWeight") ? Kind::kConvolution
                                                                                                 : Kind::kOther;
}

}  // namespace

bool is_compared(const Node& node) { return kind_of(node) != Kind::kOther; }

std::vector<Contestant> onednn_alone(const Node& node) {
  return kind_of(node) == Kind::kProduct ? onednn_product(node) : onednn_convolution(node);
}

}  // namespace onnx_train
