#include "kernels/lowering/island.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "kernels/lowering/lowering.h"
#include "onnx_passes/ir/inference.h"

namespace onnx_train {
namespace {

// A line stays in the cache while it is worked on, and reductions of lines this long are summed in one order.
constexpr int64_t kLongestLine = 16384;
constexpr int64_t kLongestOnlyLine = 4096;  // of a space that is one line, which is one thread's work
constexpr int64_t kFewestClosed = 8;        // elements that a closing reduction makes one of
constexpr int64_t kMaxRank = 12;

bool has_static_shapes(const Node& node) {
  const auto is_static = [](const Value* value) { return !value || value->type().is_static(); };
  return std::all_of(node.inputs().begin(), node.inputs().end(), is_static) &&
         std::all_of(node.outputs().begin(), node.outputs().end(), is_static);
}

// Whether an operand of shape `operand`, broadcast to `out`, gives each `line` elements in order one number.
bool is_one_per_line(const Shape& operand, const Shape& out, int64_t line) {
  if (operand.size() > out.size()) return false;
  const size_t missing = out.size() - operand.size();
  const auto size = [&](size_t d) { return d < missing ? int64_t{1} : operand[d - missing]; };
  size_t d = out.size();
  int64_t inner = 1;
  for (; d > 0 && inner < line; --d) {
    if (size(d - 1) != 1) return false;
    inner *= out[d - 1];
  }
  if (inner != line) return false;
  for (; d > 0; --d) {
    if (size(d - 1) != out[d - 1]) return false;
  }
  return true;
}

std::optional<Residence> fit_view(const Node& node, const ResidenceOf& residence_of, const Space& space) {
  const auto residence = residence_of(node.input(0));
  if (residence) return *residence == Residence::kClosed ? std::nullopt : residence;
  return num_elements_of(*node.output()) == space.size ? std::optional(Residence::kFull) : std::nullopt;
}

bool operand_fits(const Value& operand, std::optional<Residence> at, const Node& node, Residence result,
                  const Space& space) {
  if (!at) return true;
  const bool equal = num_elements_of(operand) == num_elements_of(*node.output());
  switch (*at) {
    case Residence::kFull: return result == Residence::kFull && equal;
    case Residence::kLine:
      return result == Residence::kLine
                 ? equal
                 : is_one_per_line(operand.type().shape(), node.output()->type().shape(), space.line);
    case Residence::kClosed: return false;
  }
  return false;
}

std::optional<Residence> fit_elementwise(const Node& node, const ResidenceOf& residence_of, const Space& space) {
  const int64_t size = num_elements_of(*node.output());
  const bool line = space.line > 0 && size != space.size && size * space.line == space.size;
  if (!line && size != space.size) return std::nullopt;
  const Residence result = line ? Residence::kLine : Residence::kFull;
  bool inside = false;
  for (int i = 0; i < num_operands(node); ++i) {
    const Value* operand = node.input(i);
    if (!operand) continue;
    const auto at = residence_of(operand);
    if (!operand_fits(*operand, at, node, result, space)) return std::nullopt;
    inside = inside || at == Residence::kLine;
  }
  return line && !inside ? std::nullopt : std::optional(result);
}

// The number of elements in a line that the reduction makes one of; 0 when it does not reduce the innermost axes, and
// only these.
int64_t reduced_line(const Shape& shape, const std::vector<bool>& reduced) {
  int64_t line = 1;
  bool kept = false;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 1) continue;
    if (reduced[d] && kept) return 0;
    if (reduced[d]) line *= shape[d];
    kept = kept || !reduced[d];
  }
  return line;
}

std::optional<Residence> fit_reduction(const Node& node, const ResidenceOf& residence_of, Space* space) {
  const auto at = residence_of(node.input(0));
  if ((at && *at != Residence::kFull) || num_elements_of(*node.input(0)) != space->size) return std::nullopt;
  const auto axes = reduced_axes(node);
  if (!axes || space->size == num_elements_of(*node.output())) return std::nullopt;
  const int64_t line = reduced_line(node.input(0)->type().shape(), *axes);
  const bool short_enough = line <= (line == space->size ? kLongestOnlyLine : kLongestLine);
  if (line == 0 || !short_enough || (space->line != 0 && space->line != line)) {
    // Each piece of the space has accumulators for the whole result.
    const bool much_smaller = num_elements_of(*node.output()) * kFewestClosed <= space->size;
    return much_smaller ? std::optional(Residence::kClosed) : std::nullopt;
  }
  space->line = line;
  return Residence::kLine;
}

}  // namespace

bool is_reduction(const Node& node) {
  static constexpr std::array<std::string_view, 7> kOps = {"ReduceSum", "ReduceMean",      "ReduceMax", "ReduceMin",
                                                           "ReduceL1",  "ReduceSumSquare", "ReduceL2"};
  return node.domain().empty() && std::find(kOps.begin(), kOps.end(), node.op()) != kOps.end();
}

std::optional<std::vector<bool>> reduced_axes(const Node& node) {
  const int64_t rank = node.input(0)->rank();
  std::vector<int64_t> axes;
  if (node.input(1)) {
    const Tensor constant = constant_of(node.input(1));
    if (constant.empty()) return std::nullopt;
    axes = constant.to_ints();
  }
  const bool all = axes.empty() && node.attr("noop_with_empty_axes", 0) == 0;
  std::vector<bool> reduced(static_cast<size_t>(rank), all);
  for (int64_t axis : axes) reduced[static_cast<size_t>(normalize_axis(axis, rank))] = true;
  return reduced;
}

int num_operands(const Node& node) {
  return node.is("Expand") || is_view(node) || is_reduction(node) ? 1 : node.num_inputs();
}

std::optional<Residence> fit(const Node& node, const ResidenceOf& residence_of, Space* space) {
  if (!has_static_shapes(node) || !node.output() || node.output()->rank() > kMaxRank) return std::nullopt;
  Space wanted = *space;
  if (wanted.size == 0) wanted.size = num_elements_of(is_reduction(node) ? *node.input(0) : *node.output());
  if (wanted.size == 0) return std::nullopt;  // empty
  std::optional<Residence> result;
  if (is_view(node)) {
    result = fit_view(node, residence_of, wanted);
  } else if (is_reduction(node)) {
    result = fit_reduction(node, residence_of, &wanted);
  } else {
    result = fit_elementwise(node, residence_of, wanted);
  }
  if (result) *space = wanted;
  return result;
}

std::optional<Space> merge(const Space& a, const Space& b) {
  if (a.size != b.size || (a.line != 0 && b.line != 0 && a.line != b.line)) return std::nullopt;
  return Space{a.size, std::max(a.line, b.line)};
}

}  // namespace onnx_train
