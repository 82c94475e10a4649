#include <cmath>

#include "tests/op_cases/op_case.h"

namespace onnx_train {

namespace {

Attrs sampling(const char* mode, const char* padding, int align) {
  return {{"mode", mode}, {"padding_mode", padding}, {"align_corners", align}};
}

// Kinks are where a coordinate is that of a pixel, or halfway between two: k / 2 pixels. Points in pixels keep away
// from them; those of a grid are drawn for axes of one size.
std::vector<double> kinks_of_pixels() {
  std::vector<double> kinks;
  for (int k = -40; k <= 40; ++k) kinks.push_back(0.5 * k);
  return kinks;
}

std::vector<double> kinks_of_grid(int64_t size, bool align) {
  std::vector<double> kinks;
  for (const double pixel : kinks_of_pixels()) {
    const auto length = static_cast<double>(size);
    kinks.push_back(align ? 2 * pixel / (length - 1) - 1 : (2 * pixel + 1) / length - 1);
  }
  return kinks;
}

void add_grid_samples(std::vector<OpCase>& cases) {
  const auto add = [&](Shape x, Shape grid, const Attrs& attrs, bool align, double reach = 1.6) {
    const OpInput points = {
        .shape = std::move(grid), .low = -reach, .high = reach, .away_from = kinks_of_grid(x.back(), align)};
    cases.push_back({.op = "GridSample", .inputs = {{std::move(x)}, points}, .attrs = attrs, .tolerance = 2e-5});
  };
  for (const char* mode : {"linear", "nearest", "cubic"}) {
    for (const char* padding : {"zeros", "border", "reflection"}) {
      for (const int align : {0, 1}) {
        const Attrs attrs = sampling(mode, padding, align);
        add({2, 3, 4, 4}, {2, 3, 5, 2}, attrs, align);
        add({2, 2, 3, 3, 3}, {2, 2, 3, 2, 3}, attrs, align);
        add({1, 1, 4, 4}, {1, 1, 1, 2}, attrs, align, 6);  // far outside
      }
    }
  }
  const Attrs attrs = sampling("linear", "zeros", 0);
  add({2, 3, 5}, {2, 7, 1}, attrs, false);
  add({0, 3, 4, 4}, {0, 3, 5, 2}, attrs, false);
  add({2, 3, 4, 4}, {2, 0, 5, 2}, attrs, false);
  add({2, 3, 1, 1}, {2, 3, 5, 2}, attrs, false);
  add({2, 3, 1, 1}, {2, 3, 5, 2}, sampling("cubic", "reflection", 0), false);
  cases.back().inputs[1].no_derivative = "the one pixel is everywhere: differences show rounding";
  add({1, 20, 5, 5}, {1, 40, 60, 2}, attrs, false);  // several blocks of points, more channels than a thread's
  add({2, 3, 4, 4}, {2, 3, 5, 2}, {}, false);
}

void add_affine_grids(std::vector<OpCase>& cases) {
  const auto add = [&](Shape theta, const Ints& size, int align) {
    cases.push_back({.op = "AffineGrid",
                     .inputs = {{std::move(theta)}, sizes(size)},
                     .attrs = {{"align_corners", align}},
                     .dynamic = false});
  };
  for (const int align : {0, 1}) {
    add({2, 2, 3}, {2, 3, 4, 5}, align);
    add({1, 2, 3}, {1, 1, 2, 3}, align);
    add({2, 3, 4}, {2, 3, 2, 4, 3}, align);
  }
  add({2, 2, 3}, {2, 1, 1, 1}, 0);
}

void add_deformable_convolutions(std::vector<OpCase>& cases) {
  // Offsets keep away from those with which a point is at a pixel.
  const auto moved = [](Shape shape) {
    return OpInput{.shape = std::move(shape), .low = -2, .high = 2, .away_from = {-2, -1, 0, 1, 2}};
  };
  const auto add = [&](Shape x, Shape w, const Shape& places, Attrs attrs, bool bias, bool mask, int64_t groups = 1) {
    int64_t taps = groups;
    for (size_t k = 2; k < w.size(); ++k) taps *= w[k];
    Shape offset = {x[0], taps * static_cast<int64_t>(places.size())}, masks = {x[0], taps};
    offset.insert(offset.end(), places.begin(), places.end());
    masks.insert(masks.end(), places.begin(), places.end());
    const int64_t outs = w[0];
    std::vector<OpInput> inputs = {{std::move(x)}, {std::move(w)}, moved(std::move(offset))};
    if (bias || mask) inputs.push_back(bias ? OpInput{{outs}} : OpInput{.absent = true});
    if (mask) inputs.push_back({std::move(masks)});
    attrs.emplace_back("offset_group", groups);
    cases.push_back({.op = "DeformConv", .inputs = std::move(inputs), .attrs = std::move(attrs), .tolerance = 2e-5});
  };
  add({2, 3, 5, 6}, {4, 3, 3, 3}, {3, 4}, {}, false, false);
  add({2, 4, 5, 6}, {4, 2, 3, 2}, {2, 7}, {{"pads", Ints{0, 1, 1, 1}}, {"strides", Ints{2, 1}}, {"group", 2}}, true,
      true, 2);
  add({2, 4, 6, 7}, {6, 2, 2, 3}, {5, 2}, {{"dilations", Ints{1, 2}}, {"strides", Ints{1, 2}}, {"group", 2}}, false,
      true);
  add({1, 2, 1, 1}, {2, 2, 1, 1}, {1, 1}, {}, true, false);
}

// Regions: partly outside, small, empty, the same one twice. No sample is at a pixel.
OpInput regions(int64_t count) {
  const std::vector<double> boxes = {0.31, 0.42, 5.23, 4.17, -2.13, -1.71, 3.37, 2.29, 1.13, 2.22, 1.56, 2.93,
                                     2.41, 1.17, 9.31, 8.83, 3.07,  3.21,  2.83, 1.09, 0.31, 0.42, 5.23, 4.17};
  OpInput input = {.value = Tensor(DType::kFloat, {count, 4}), .no_derivative = "regions have no gradient"};
  for (int64_t i = 0; i < 4 * count; ++i) input.value.set(i, boxes[static_cast<size_t>(i) % boxes.size()]);
  return input;
}

OpInput images(const Ints& numbers) { return {.value = Tensor::ints(numbers)}; }

void add_region_pools(std::vector<OpCase>& cases) {
  for (const char* mode : {"avg", "max"}) {
    for (const char* coordinates : {"half_pixel", "output_half_pixel"}) {
      for (const int64_t sampling : {0, 2, 3}) {
        const Attrs attrs = {{"mode", mode},          {"coordinate_transformation_mode", coordinates},
                             {"output_height", 2},    {"output_width", 3},
                             {"spatial_scale", 0.9f}, {"sampling_ratio", sampling}};
        const std::vector<OpInput> inputs = {
            {.shape = {2, 3, 5, 6}, .distinct = true}, regions(6), images({0, 1, 1, 0, 1, 0})};
        cases.push_back({.op = "RoiAlign", .inputs = inputs, .attrs = attrs, .tolerance = 2e-5});
        OpInput known = regions(6);  // the body counts samples when it is planned
        known.constant = true;
        const Attrs gradient = {
            {"spatial_scale", 0.9f}, {"sampling_ratio", sampling}, {"half_pixel", coordinates[0] == 'h' ? 1 : 0}};
        OpCase row = {.op = "RoiAlignGrad",
                      .inputs = {{{6, 3, 2, 3}}, known, images({0, 1, 1, 0, 1, 0}), sizes({2, 3, 5, 6})},
                      .attrs = gradient,
                      .domain = "onnx_train",
                      .tolerance = 2e-5,
                      .gradient = false,
                      .dynamic = false};
        if (mode[0] == 'm') {
          row.op = "RoiAlignMaxGrad";
          row.inputs = {{{6, 3, 2, 3}}, {.shape = {2, 3, 5, 6}, .distinct = true}, known, images({0, 1, 1, 0, 1, 0})};
        }
        cases.push_back(row);
      }
    }
    const Attrs attrs = {{"mode", mode}, {"output_height", 3}, {"output_width", 2}};
    cases.push_back({.op = "RoiAlign", .inputs = {{{1, 2, 1, 1}}, regions(1), images({0})}, .attrs = attrs});
    cases.push_back({.op = "RoiAlign",
                     .inputs = {{{1, 2, 4, 4}}, regions(0), images({})},
                     .attrs = attrs,
                     .no_derivative = "there is no region"});
    // More columns than a block has, more channels than a thread.
    cases.push_back({.op = "RoiAlign",
                     .inputs = {{.shape = {1, 10, 3, 300}, .low = 0, .distinct = true}, regions(2), images({0, 0})},
                     .attrs = {{"mode", mode}, {"spatial_scale", 40.0f}, {"sampling_ratio", 2}, {"output_width", 4}}});
  }
}

// Regions with their images: partly outside, one pixel, halves, outside of the image, with bins that overlap.
OpInput numbered_regions(int64_t count) {
  const std::vector<double> rows = {0, 0.4,  0.6, 5.2, 4.1, 1, -2.2, -1.6, 3.4, 2.2, 1, 1.5, 2.5, 1.5, 2.5,
                                    0, -0.5, 1.5, 9.3, 8.8, 1, 20,   21,   25,  26,  0, 4,   3,   1,   0};
  OpInput input = {.value = Tensor(DType::kFloat, {count, 5}), .no_derivative = "regions have no gradient"};
  for (int64_t i = 0; i < 5 * count; ++i) input.value.set(i, rows[static_cast<size_t>(i) % rows.size()]);
  return input;
}

void add_whole_region_pools(std::vector<OpCase>& cases) {
  const auto add = [&](Shape x, int64_t count, const Ints& bins, float scale) {
    const OpInput images = {.shape = std::move(x), .distinct = true};
    cases.push_back({.op = "MaxRoiPool",
                     .inputs = {images, numbered_regions(count)},
                     .attrs = {{"pooled_shape", bins}, {"spatial_scale", scale}}});
    if (count == 0) cases.back().no_derivative = "there is no region";
    OpCase row = {.op = "MaxRoiPoolGrad",
                  .inputs = {{{count, images.shape[1], bins[0], bins[1]}}, images, numbered_regions(count)},
                  .attrs = {{"spatial_scale", scale}},
                  .domain = "onnx_train",
                  .gradient = false,
                  .dynamic = false};
    cases.push_back(row);
  };
  for (const float scale : {1.0f, 0.7f}) {
    add({2, 3, 5, 6}, 6, {2, 3}, scale);
    add({2, 3, 5, 6}, 6, {7, 1}, scale);  // more bins than pixels
  }
  add({1, 2, 1, 1}, 1, {2, 2}, 1);
  add({2, 2, 4, 4}, 0, {2, 2}, 1);
  cases.push_back(
      {.op = "MaxRoiPool", .inputs = {{{2, 3, 5, 6}}, numbered_regions(6)}, .attrs = {{"pooled_shape", Ints{3, 3}}}});
  // By hand: bins of 1.5 pixels overlap in the middle one.
  OpInput counted = {.value = Tensor(DType::kFloat, {1, 1, 3, 4})};
  for (int64_t i = 0; i < 12; ++i) counted.value.set(i, static_cast<double>(i));
  OpInput region = {.value = Tensor::of<double>({1, 5}, {0, 0.6, -0.4, 2.5, 2.4}).cast(DType::kFloat),
                    .no_derivative = "regions have no gradient"};
  cases.push_back({.op = "MaxRoiPool",
                   .inputs = {counted, region},
                   .attrs = {{"pooled_shape", Ints{2, 2}}},
                   .expected = [](const std::vector<Tensor>&) {
                     return Tensor::of<double>({1, 1, 2, 2}, {6, 7, 10, 11});
                   }});
}

// The functions themselves, kernel against body.
void add_functions(std::vector<OpCase>& cases) {
  const auto add = [&](const char* op, std::vector<OpInput> inputs, const Attrs& attrs) {
    cases.push_back({.op = op,
                     .inputs = std::move(inputs),
                     .attrs = attrs,
                     .domain = "onnx_train",
                     .tolerance = 2e-5,
                     .gradient = false,
                     .dynamic = false});
  };
  for (const char* mode : {"linear", "nearest", "cubic"}) {
    for (const char* padding : {"zeros", "border", "reflection"}) {
      for (const int align : {0, 1}) {
        for (const int normalized : {0, 1}) {
          Attrs attrs = sampling(mode, padding, align);
          attrs.emplace_back("normalized", normalized);
          const double low = normalized ? -2 : -5, high = normalized ? 2 : 9;
          const auto points = [&](Shape shape, int64_t size) {
            return OpInput{.shape = std::move(shape),
                           .low = low,
                           .high = high,
                           .away_from = normalized ? kinks_of_grid(size, align) : kinks_of_pixels()};
          };
          const OpInput flat = points({2, 3, 5, 2}, 4), deep = points({2, 4, 3}, 3), line = points({2, 6, 1}, 4);
          add("SampleImage", {{{2, 3, 4, 4}}, flat}, attrs);
          add("SampleImage", {{{2, 3, 3, 3, 3}}, deep}, attrs);
          add("SampleImage", {{{2, 3, 4}}, line}, attrs);
          add("SampleImageGradInput", {{{2, 3, 3, 5}}, flat, sizes({2, 3, 4, 4})}, attrs);
          add("SampleImageGradInput", {{{2, 3, 4}}, deep, sizes({2, 3, 3, 3, 3})}, attrs);
          add("SampleImageGradInput", {{{2, 3, 6}}, line, sizes({2, 3, 4})}, attrs);
          add("SampleImageGradPoints", {{{2, 3, 3, 5}}, {{2, 3, 4, 4}}, flat}, attrs);
          add("SampleImageGradPoints", {{{2, 3, 4}}, {{2, 3, 3, 3, 3}}, deep}, attrs);
          add("SampleImageGradPoints", {{{2, 3, 6}}, {{2, 3, 4}}, line}, attrs);
        }
      }
    }
  }
}

// NonMaxSuppression, as a plan has it: the boxes of each class in the order in which they are taken.
void add_box_selections(std::vector<OpCase>& cases) {
  const auto add = [&](Shape boxes, Shape scores, int64_t most, float overlap, float least, int center) {
    const auto number = [](double value) { return OpInput{.value = Tensor::full(DType::kFloat, {}, value)}; };
    cases.push_back({.op = "SelectBoxes",
                     .inputs = {{.shape = std::move(boxes), .low = 0.2, .high = 2},
                                {.shape = std::move(scores), .distinct = true},
                                {.value = Tensor::scalar<int64_t>(most)},
                                number(overlap),
                                number(least)},
                     .attrs = {{"center", center}},
                     .domain = "onnx_train",
                     .gradient = false,
                     .dynamic = false});
  };
  for (const int center : {0, 1}) {
    add({2, 9, 4}, {2, 3, 9}, 4, 0.3f, -0.5f, center);
    add({2, 9, 4}, {2, 3, 9}, 100, 0.1f, std::nanf(""), center);
    add({1, 300, 4}, {1, 2, 300}, 300, 0.5f, 0, center);
    add({1, 1, 4}, {1, 1, 1}, 1, 0.5f, -2, center);
    add({1, 5, 4}, {1, 2, 5}, 0, 0.5f, 0, center);
  }
  add({2, 0, 4}, {2, 3, 0}, 4, 0.3f, -0.5f, 0);
  add({0, 5, 4}, {0, 3, 5}, 4, 0.3f, -0.5f, 0);
  cases.back().no_body = "ArgMax has no result for no elements";
}

}  // namespace

std::vector<OpCase> sampling_cases() {
  std::vector<OpCase> cases;
  add_grid_samples(cases);
  add_affine_grids(cases);
  add_deformable_convolutions(cases);
  add_region_pools(cases);
  add_whole_region_pools(cases);
  add_box_selections(cases);
  add_functions(cases);
  return cases;
}

}  // namespace onnx_train
