#include "tests/op_cases/op_case.h"

namespace onnx_train {

namespace {

using Ints = std::vector<int64_t>;
using Floats = std::vector<float>;

const OpInput kAbsent = {.absent = true};

OpInput floats(const Floats& values) {
  return {.value = Tensor::of<float>({static_cast<int64_t>(values.size())}, values),
          .constant = true,
          .no_derivative = "a plan takes scales and regions as constants",
          .single = true};
}

OpInput ints(const Ints& values) { return {.value = Tensor::ints(values), .constant = true}; }

Attrs joined(Attrs attrs, const Attrs& more) {
  attrs.insert(attrs.end(), more.begin(), more.end());
  return attrs;
}

OpCase by_scales(Shape x, const Floats& scales, const Attrs& attrs, const Floats& roi = {}) {
  return {
      .op = "Resize", .inputs = {{std::move(x)}, roi.empty() ? kAbsent : floats(roi), floats(scales)}, .attrs = attrs};
}

OpCase by_sizes(Shape x, const Ints& sizes, const Attrs& attrs, const Floats& roi = {}) {
  return {.op = "Resize",
          .inputs = {{std::move(x)}, roi.empty() ? kAbsent : floats(roi), kAbsent, ints(sizes)},
          .attrs = attrs};
}

Attr coordinates(const char* mode) { return {"coordinate_transformation_mode", mode}; }

const Ints kSpatial = {2, 3};

std::vector<Attrs> modes() {
  std::vector<Attrs> all = {{{"mode", "linear"}},
                            {{"mode", "cubic"}},
                            {{"mode", "cubic"}, {"cubic_coeff_a", -0.5f}, {"exclude_outside", 1}},
                            {{"mode", "linear"}, {"exclude_outside", 1}}};
  for (const char* rounding : {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}) {
    all.push_back({{"mode", "nearest"}, {"nearest_mode", rounding}});
  }
  return all;
}

// Every mode with every way to find coordinates: larger, smaller, to sizes that no factor gives.
void add_all_modes(std::vector<OpCase>& cases) {
  for (const Attrs& mode : modes()) {
    for (const char* name :
         {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"}) {
      const Attrs attrs = joined(mode, {coordinates(name), {"axes", kSpatial}});
      cases.push_back(by_scales({2, 3, 4, 5}, {2, 2}, attrs));
      cases.push_back(by_scales({2, 3, 7, 6}, {0.6f, 1.7f}, attrs));
      cases.push_back(by_sizes({2, 3, 7, 5}, {3, 8}, attrs));
      cases.push_back(by_sizes({2, 3, 3, 4}, {1, 1}, attrs));
    }
    // No coordinate is near a half or a whole number: the reference computes these in float32.
    const Attrs crop =
        joined(mode, {coordinates("tf_crop_and_resize"), {"axes", kSpatial}, {"extrapolation_value", 2.5f}});
    cases.push_back(by_sizes({2, 3, 5, 6}, {3, 4}, crop, {0.42f, 0.63f, 0.6f, 0.81f}));
    cases.push_back(by_sizes({2, 3, 5, 6}, {4, 5}, crop, {-0.2f, 0.62f, 0.9f, 1.2f}));  // partly outside
    cases.push_back(by_sizes({2, 3, 5, 6}, {3, 1}, crop, {0.9f, 0.25f, 0.14f, 0.8f}));  // back to front; one element
    cases.push_back(by_scales({2, 3, 5, 6}, {1, 1.5f}, crop, {0, 0, 1, 0.5f}));
  }
}

void add_antialias(std::vector<OpCase>& cases) {
  for (const char* mode : {"linear", "cubic"}) {
    for (const int exclude : {0, 1}) {
      const Attrs attrs = {{"mode", mode}, {"antialias", 1}, {"exclude_outside", exclude}, {"axes", kSpatial}};
      cases.push_back(by_scales({2, 3, 7, 8}, {0.6f, 0.5f}, attrs));
      cases.push_back(by_sizes({1, 2, 9, 5}, {2, 8}, attrs));  // smaller and larger
      cases.push_back(by_sizes({1, 2, 9, 5}, {1, 1}, joined(attrs, {coordinates("align_corners")})));
    }
  }
}

void add_policies(std::vector<OpCase>& cases) {
  for (const char* policy : {"not_larger", "not_smaller"}) {
    for (const char* mode : {"nearest", "linear", "cubic"}) {
      const Attrs attrs = {{"mode", mode}, {"keep_aspect_ratio_policy", policy}, {"axes", kSpatial}};
      cases.push_back(by_sizes({2, 3, 4, 5}, {7, 8}, attrs));
      cases.push_back(by_sizes({2, 3, 5, 7}, {3, 4}, attrs));
      cases.push_back(by_sizes({2, 3, 5, 7}, {3, 6}, joined(attrs, {coordinates("align_corners")})));
    }
  }
}

void add_shapes(std::vector<OpCase>& cases) {
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    const Attrs attrs = {{"mode", mode}};
    cases.push_back(by_scales({7}, {2}, attrs));
    cases.push_back(by_sizes({3, 8}, {3, 5}, attrs));
    cases.push_back(by_sizes({3, 8}, {5, 8}, attrs));  // the batch, too
    cases.push_back(by_scales({2, 3, 9}, {1, 1, 2}, attrs));
    cases.push_back(by_scales({2, 3, 9}, {1, 1, 0.5f}, attrs));
    cases.push_back(by_scales({2, 3, 40}, {1, 1, 2}, attrs));  // long enough for the loops that look nothing up
    cases.push_back(by_scales({2, 3, 80}, {1, 1, 0.5f}, attrs));
    cases.push_back(by_scales({2, 2, 3, 4, 5}, {1, 1, 2, 1.5f, 0.6f}, attrs));
    cases.push_back(by_sizes({2, 2, 3, 4, 5}, {2, 3, 2, 5, 9}, attrs));
    cases.push_back(by_scales({1, 1, 1, 1}, {1, 1, 3, 2}, attrs));
    cases.push_back(by_scales({2, 3, 4, 4}, {1, 1, 1, 1}, attrs));  // nothing to do
    cases.push_back(by_scales({0, 3, 4, 4}, {1, 1, 2, 2}, attrs));
    cases.push_back(by_sizes({2, 3, 4, 4}, {2, 3, 0, 4}, attrs));
    cases.push_back(by_sizes({2, 5, 6, 16}, {9, 7}, joined(attrs, {{"axes", Ints{-3, 2}}})));  // channels last
    cases.push_back(by_sizes({2, 5, 6, 3}, {7, 9}, joined(attrs, {{"axes", Ints{1, 2}}})));
    cases.push_back(by_sizes({2, 5, 4, 6}, {7, 9}, joined(attrs, {{"axes", Ints{3, 1}}})));  // an axis between
  }
  // One image that is cut into parts.
  cases.push_back(by_scales({1, 1, 160, 150}, {1, 1, 2, 2}, {{"mode", "linear"}}));
  cases.push_back(by_scales({1, 2, 300, 20}, {1, 1, 0.5f, 2}, {{"mode", "linear"}, {"antialias", 1}}));
}

void add_types(std::vector<OpCase>& cases) {
  const auto add = [&](DType dtype, double low, double high, const Attrs& attrs) {
    OpCase row = by_sizes({2, 3, 4, 5}, {2, 3, 7, 3}, attrs);
    row.inputs[0] = {.shape = {2, 3, 4, 5}, .low = low, .high = high, .dtype = dtype};
    row.gradient = false;
    cases.push_back(row);
  };
  for (const DType dtype : {DType::kInt8, DType::kUint8, DType::kInt16, DType::kInt32, DType::kInt64, DType::kBool}) {
    add(dtype, 0, dtype == DType::kBool ? 2 : 100, {{"mode", "nearest"}});
  }
  add(DType::kInt32, -100, 100, {{"mode", "linear"}});
  add(DType::kUint8, 0, 255, {{"mode", "cubic"}});
  add(DType::kInt64, -100, 100, {{"mode", "linear"}, coordinates("align_corners")});
}

// The functions themselves, kernel against body.
void add_gradients(std::vector<OpCase>& cases) {
  const auto add = [&](std::vector<OpInput> inputs, const char* mode, const char* coordinate, const char* policy,
                       int antialias, int exclude, const Ints& axes) {
    cases.push_back({.op = "ResizeGrad",
                     .inputs = std::move(inputs),
                     .attrs = {{"axes", axes},
                               {"mode", mode},
                               coordinates(coordinate),
                               {"nearest_mode", "round_prefer_ceil"},
                               {"keep_aspect_ratio_policy", policy},
                               {"antialias", antialias},
                               {"exclude_outside", exclude},
                               {"cubic_coeff_a", -0.6f}},
                     .domain = "onnx_train",
                     .gradient = false,
                     .dynamic = false});
  };
  const OpInput x_shape = ints({2, 3, 7, 6});
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    for (const int exclude : {0, 1}) {
      for (const char* coordinate :
           {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"}) {
        add({{{2, 3, 5, 13}}, x_shape}, mode, coordinate, "stretch", 0, exclude, kSpatial);
        add({{{2, 3, 4, 13}}, x_shape, kAbsent, floats({0.6f, 2.2f})}, mode, coordinate, "stretch", 0, exclude,
            kSpatial);
      }
      add({{{2, 3, 5, 4}}, x_shape, floats({-0.1f, 0.2f, 0.9f, 0.7f})}, mode, "tf_crop_and_resize", "stretch", 0,
          exclude, kSpatial);
    }
    add({{{2, 3, 5, 4}}, x_shape, kAbsent, kAbsent, ints({9, 4})}, mode, "half_pixel", "not_larger", 0, 0, kSpatial);
    add({{{2, 3, 9, 8}}, x_shape, kAbsent, kAbsent, ints({9, 4})}, mode, "half_pixel", "not_smaller", 0, 0, kSpatial);
    add({{{2, 3, 7, 0}}, x_shape}, mode, "half_pixel", "stretch", 0, 0, {3});
  }
  for (const char* mode : {"linear", "cubic"}) {
    for (const int exclude : {0, 1}) {
      add({{{2, 3, 2, 9}}, x_shape}, mode, "half_pixel", "stretch", 1, exclude, kSpatial);
      add({{{2, 3, 4, 3}}, x_shape, kAbsent, floats({0.6f, 0.5f})}, mode, "align_corners", "stretch", 1, exclude,
          kSpatial);
    }
  }
}

}  // namespace

std::vector<OpCase> resampling_cases() {
  std::vector<OpCase> cases;
  add_all_modes(cases);
  add_antialias(cases);
  add_policies(cases);
  add_shapes(cases);
  add_types(cases);
  add_gradients(cases);
  return cases;
}

}  // namespace onnx_train
