#include "kernels/lowering/descriptions.h"

#include <map>

namespace onnx_train {

std::string what_lowering_does(const std::string& pass) {
  static const std::map<std::string, std::string> kDescriptions = {
      {"fix_defaults", "makes constants of inputs with a default that are not given"},
      {"set_shapes", "gives the inputs their sizes, and forgets what followed from symbols"},
      {"fold_constants", "infers all types from the sizes of the inputs, and computes what depends on constants only"},
      {"put_sequences_first", "transposes recurrent operators of layout 1 to layout 0"},
      {"share_recurrent_steps", "makes one of a recurrent operator and the one that training runs beside it"},
      {"dequantize_at_readers", "makes floats of stored integers only while a product reads them"},
      {"expand_functions", "replaces calls of functions without a kernel by their bodies"},
      {"expand_quantization", "replaces QuantizeLinear and DequantizeLinear by element-wise nodes"},
      {"cut_segments", "puts nodes whose shapes depend on data into segments, which are planned when they run"},
      {"expand_control_flow", "replaces a Scan by its steps, and an If by both branches and a choice"},
      {"remove_dead_nodes", "removes nodes and initializers that nothing reads"},
      {"share_scalars", "computes equal numbers once"},
      {"drop_zero_biases", "removes biases of constant zeros"},
      {"drop_neutral_operands", "removes sums with zeros and products by ones"},
      {"split_selections", "makes views of Gathers of all entries of an axis"},
      {"round_once", "removes second roundings of numbers that are rounded already"},
      {"fuse_batch_normalization", "merges batch normalization with the Relu and the sum after it"},
      {"channels_last", "stores images channels last in regions of convolutions"},
      {"fold_transposes", "makes strides of products of the transposes around them"},
      {"block_attention", "makes one node of the products and the softmax of an attention"},
      {"simplify_masks", "computes masks of attention that constants determine"},
      {"add_gather_gradients", "adds the gradient of a lookup to another gradient row by row"},
      {"sparse_updates", "updates only the rows of a table that the batch looks up"},
      {"merge_lookup_gradients", "merges the gradients of lookups in many small tables"},
      {"assign_types", "gives each value its stored type, 16 bits or float32"},
      {"product_epilogues", "merges a product with the bias that follows it"},
      {"merge_projections", "merges the products that make queries, keys and values"},
      {"sum_products", "makes each product of a sum add to what is there before it"},
      {"pack_attention", "lets attention read and write where the products around it do"},
      {"narrow_storage", "lets kernels read and write 16 bits instead of casts around them"},
      {"round_constants", "rounds frozen weights once, not in every step"},
      {"quantize_products", "stores operands of products that are rounded to 8 bits in 8 bits"},
      {"linear_cross_entropy", "makes one node of a product, the loss of its result and their gradients"},
      {"fuse_products", "merges a product with the residual, the activation or its gradient that follows it"},
      {"pad_classes", "pads 16-bit logits to a multiple of 64 columns"},
      {"batch_weight_gradients", "makes one batched product of the weight gradients of equal layers"},
      {"merge_casts", "makes one node of the casts of all weights"},
      {"merge_lookups", "makes one node of lookups in many small tables"},
      {"fuse_elementwise", "makes one node of groups of element-wise nodes and reductions"},
      {"update_early", "updates large weights where their gradients are made"},
      {"merge_updates", "makes one node of updates that stand together"},
      {"recompute", "computes values again that wait long for their reader, within --memory"},
      {"order_nodes", "orders nodes for a smaller arena"},
  };
  const auto found = kDescriptions.find(pass);
  return found == kDescriptions.end() ? "" : found->second;
}

}  // namespace onnx_train
