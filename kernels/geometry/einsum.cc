#include "kernels/geometry/einsum.h"

#include <algorithm>
#include <map>
#include <memory>

#include "kernels/place.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/einsum.h"

namespace onnx_train {
namespace {

// A tensor whose axes are named by distinct letters.
struct Named {
  std::string indices;
  Shape strides;  // in elements
  OperandPlace place;
};

bool has(const std::string& indices, char index) { return indices.find(index) != std::string::npos; }

template <typename F>
std::string select(const std::string& indices, F keep) {
  std::string kept;
  std::copy_if(indices.begin(), indices.end(), std::back_inserter(kept), keep);
  return kept;
}

class EinsumPlan {
 public:
  EinsumPlan(const NodeSpec& spec, PrepareArrangement arrangement, PrepareProduct product)
      : spec_(spec), einsum_(parse_einsum(spec.node())), arrangement_(arrangement), product_(product) {}

  Prepared prepare() {
    for (size_t i = 0; i < einsum_.inputs.size(); ++i) measure(einsum_.inputs[i], spec_.in_shape(static_cast<int>(i)));
    if (spec_.out_shape() != sizes_of(einsum_.output)) {
      fail(spec_.node().label(), ": it makes ", to_string(sizes_of(einsum_.output)), ", its type says ",
           to_string(spec_.out_shape()), "; an index of size 1 is repeated before the input that has its size");
    }
    Named result = named_input(0);
    for (size_t i = 1; i < einsum_.inputs.size(); ++i) result = multiply(result, named_input(i), wanted_after(i));
    arrange(result, einsum_.output, OperandPlace{OperandPlace::kOutput, 0});
    const auto steps = std::make_shared<std::vector<Step>>(std::move(steps_));
    return {[steps](const Launch& launch) {
              for (const Step& step : *steps) step(launch);
            },
            workspace_.bytes()};
  }

 private:
  using Step = std::function<void(const Launch&)>;

  void measure(const std::string& indices, const Shape& shape) {
    for (size_t i = 0; i < indices.size(); ++i) {
      int64_t& size = sizes_.try_emplace(indices[i], shape[i]).first->second;
      if (size == 1) size = shape[i];
      if (shape[i] != 1 && shape[i] != size)
        fail(spec_.node().label(), ": index '", indices[i], "' has sizes ", size, " and ", shape[i]);
    }
  }

  // The axes of input i. Axes that repeat an index become one axis along the diagonal; broadcast axes of size 1 are
  // dropped.
  Named named_input(size_t i) const {
    const Shape shape = spec_.in_shape(static_cast<int>(i));
    Named named{"", {}, {OperandPlace::kInput, i}};
    int64_t stride = 1;
    for (size_t axis = shape.size(); axis-- > 0;) {
      const char index = einsum_.inputs[i][axis];
      if (shape[axis] == sizes_.at(index)) {
        const size_t known = named.indices.find(index);
        if (known == std::string::npos) {
          named.indices.insert(named.indices.begin(), index);
          named.strides.insert(named.strides.begin(), stride);
        } else {
          named.strides[known] += stride;
        }
      }
      stride *= shape[axis];
    }
    return named;
  }

  // Returns the indices of the output and of the inputs after number i.
  std::string wanted_after(size_t i) const {
    std::string wanted = einsum_.output;
    for (size_t j = i + 1; j < einsum_.inputs.size(); ++j) wanted += einsum_.inputs[j];
    return wanted;
  }

  Shape sizes_of(const std::string& indices) const {
    Shape sizes;
    for (char index : indices) sizes.push_back(sizes_.at(index));
    return sizes;
  }
  int64_t count(const std::string& indices) const { return num_elements(sizes_of(indices)); }
  OperandPlace reserve(const std::string& indices) {
    constexpr int64_t kMost = int64_t{1} << 56;
    if (count(indices) > kMost)
      fail(spec_.node().label(), ": its operands make ", to_string(sizes_of(indices)), ", more than memory can hold");
    return workspace_.reserve(static_cast<size_t>(count(indices)) * size_of(spec_.in_type()));
  }

  Named contiguous(const std::string& indices, OperandPlace place) const {
    Named named{indices, Shape(indices.size()), place};
    int64_t stride = 1;
    for (size_t i = indices.size(); i-- > 0;) {
      named.strides[i] = stride;
      stride *= sizes_.at(indices[i]);
    }
    return named;
  }

  // Brings the axes of `from` into the order of `indices`; all other axes are summed.
  Named arrange(const Named& from, const std::string& indices, OperandPlace to) {
    Arrangement arrangement;
    for (char index : indices) {
      const size_t axis = from.indices.find(index);
      arrangement.kept.push_back({sizes_.at(index), axis == std::string::npos ? 0 : from.strides[axis]});
    }
    for (size_t axis = 0; axis < from.indices.size(); ++axis) {
      const char index = from.indices[axis];
      if (!has(indices, index)) arrangement.reduced.push_back({sizes_.at(index), from.strides[axis]});
    }
    steps_.push_back([run = arrangement_(spec_.in_type(), arrangement), place = from.place, to](const Launch& launch) {
      run(launch, address(place, launch), address(to, launch));
    });
    return contiguous(indices, to);
  }

  Named in_order(const Named& from, const std::string& indices) {
    const Named wanted = contiguous(indices, from.place);
    if (wanted.indices == from.indices && wanted.strides == from.strides) return from;
    return arrange(from, indices, reserve(indices));
  }

  Named multiply(const Named& a, const Named& b, const std::string& wanted) {
    const auto in_b = [&](char i) { return has(b.indices, i); };
    const auto is_wanted = [&](char i) { return has(wanted, i); };
    const std::string batch = select(a.indices, [&](char i) { return in_b(i) && is_wanted(i); });
    const std::string summed = select(a.indices, [&](char i) { return in_b(i) && !is_wanted(i); });
    const std::string left = select(a.indices, [&](char i) { return !in_b(i) && is_wanted(i); });
    const std::string right = select(b.indices, [&](char i) { return !has(a.indices, i) && is_wanted(i); });
    const OperandPlace from_a = in_order(a, batch + left + summed).place,
                       from_b = in_order(b, batch + summed + right).place;
    const Named result = contiguous(batch + left + right, reserve(batch + left + right));

    const Shape products = {count(batch)};
    Product product;
    product.m = count(left);
    product.n = count(right);
    product.k = count(summed);
    product.a = row_major_matrices(products, product.m, product.k);
    product.b = row_major_matrices(products, product.k, product.n);
    product.y = row_major_matrices(products, product.m, product.n);
    const Prepared prepared = product_(spec_, product);
    const OperandPlace scratch = workspace_.reserve(prepared.workspace);
    steps_.push_back([=, run = prepared.run, to = result.place](const Launch& launch) {
      const void* inputs[] = {address(from_a, launch), address(from_b, launch)};
      void* outputs[] = {address(to, launch)};
      Launch inner = launch;
      inner.inputs = inputs;
      inner.outputs = outputs;
      inner.workspace = address(scratch, launch);
      run(inner);
    });
    return result;
  }

  const NodeSpec& spec_;
  Einsum einsum_;
  PrepareArrangement arrangement_;
  PrepareProduct product_;
  std::map<char, int64_t> sizes_;
  Workspace workspace_;
  std::vector<Step> steps_;
};

}  // namespace

Prepared prepare_einsum(const NodeSpec& spec, PrepareArrangement arrangement, PrepareProduct product) {
  return EinsumPlan(spec, arrangement, product).prepare();
}

}  // namespace onnx_train
