// Merges the lookups in many tables, such as the embeddings of a recommendation model, into one node: a single lookup
// takes less time than its launch.
#include "kernels/lowering/gather/side_by_side.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/outline.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr int64_t kMostIndices = 1 << 13;  // limit per table, since one block of threads reads them

std::string key_of_lookup(const Node& node) {
  const bool is_lookup = (node.is("Gather") || node.is("Gather", kDomain)) && node.attr("axis", 0) == 0 &&
                         has_rows(node.input(0)) && has_rows(node.input(1)) && node.output();
  if (!is_lookup || num_elements(node.input(1)->type().shape()) > kMostIndices) return "";
  return concat(node.domain(), " ", name(node.input(0)->dtype()), " ", name(node.input(1)->dtype()), " ",
                name(node.output()->dtype()), " ", row_of(*node.input(0)));
}

}  // namespace

bool merge_lookups(Model& model) {
  const auto groups = side_by_side(*model.graph, key_of_lookup, /*moves_readers=*/true);
  for (const auto& group : groups) outline(group, "Gathers");
  return !groups.empty();
}

}  // namespace onnx_train
