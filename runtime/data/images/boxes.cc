#include "runtime/data/images/boxes.h"

#include <algorithm>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

namespace {

// Along one axis: what is inside of the picture, and the length of all.
struct Extent {
  double low, high, whole;
};

// Of x horizontal + y vertical + shift, over the box, in 0 to `size`.
Extent extent_of(const LabelledBox& box, double x, double y, double shift, double size) {
  const auto [left, right] = std::minmax({x * box.left, x * box.right});
  const auto [top, bottom] = std::minmax({y * box.top, y * box.bottom});
  const double low = left + top, high = right + bottom;
  return {std::max(low + shift, 0.0), std::min(high + shift, size), high - low};
}

}  // namespace

std::optional<LabelledBox> placed_box(const LabelledBox& box, const Picture& picture) {
  constexpr double kLeastPart = 0.1, kLeastSide = 1;
  const AffineMap& map = picture.from_original;
  const Extent x = extent_of(box, map.a, map.b, map.c, picture.width);
  const Extent y = extent_of(box, map.d, map.e, map.f, picture.height);
  const double width = x.high - x.low, height = y.high - y.low;
  if (width < kLeastSide || height < kLeastSide || width * height < kLeastPart * x.whole * y.whole) return {};
  return LabelledBox{box.label, x.low, y.low, x.high, y.high};
}

const InputSpec* box_target(const std::vector<InputSpec>& inputs) {
  const auto found = std::find_if(inputs.begin(), inputs.end(), [](const InputSpec& spec) {
    const TensorType& type = spec.type;
    return spec.from_loss && !spec.has_default && is_float(type.dtype) && type.has_rank() && type.rank() == 3 &&
           (*type.dims)[2].known() && (*type.dims)[2].value() == kBoxNumbers;
  });
  return found == inputs.end() ? nullptr : &*found;
}

int64_t box_rows(const PictureFiles& files, const InputSpec& target) {
  const auto& boxes = files.boxes->boxes;
  const auto most =
      std::max_element(boxes.begin(), boxes.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  const auto count = static_cast<int64_t>(most->size());
  const Dim& rows = (*target.type.dims)[1];
  if (!rows.known()) return std::max<int64_t>(count, 1);
  if (count > rows.value()) {
    fail_as(ErrorCode::kData, files.folder, files.files[static_cast<size_t>(most - boxes.begin())], " has ", count,
            " boxes; the target '", target.name, "', ", to_string(target.type), ", takes ", rows.value());
  }
  return rows.value();
}

}  // namespace onnx_train
