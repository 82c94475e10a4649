// What a user changes of a forward model before it is trained: where it ends (cut, join), its vocabulary, its last
// layer (heads), its initial values (weights), which of its weights are one (tie, untie), and small trained parts
// beside frozen layers (adapters). Passes on an imported model, in this order, before those of training_passes;
// functions on a model that one caller owns; one thread. They throw Error that names the node, the value or the option.
//
// What a pass found and did is a line of the metadata `onnx_train.adapted`, for people. What other passes must know of
// single tensors is a record of its own: adapter_records.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "onnx_passes/adapt/adapter_spec.h"
#include "onnx_passes/model/pass.h"

namespace onnx_train {

// Lines of text, one for each thing that was done.
inline constexpr const char* kAdapted = "onnx_train.adapted";
void add_adapted_note(Model* model, const std::string& line);

// `pairs`: "A=B". Computes the weight A from the weight B: the same numbers in another shape, transposed, sliced or
// repeated (weight_views.h). Then B is one weight, and A one of its names.
Pass tie(const std::vector<std::string>& pairs);
// The opposite: every node that reads one of the weights gets a weight of its own, with the same first values.
Pass untie(const std::vector<std::string>& names);

// A cache of earlier keys and values that single operators for attention no longer read.
struct DroppedCache {
  size_t inputs = 0, outputs = 0;  // that are gone
  std::string first;               // of the inputs
  // Inputs that stay, since other nodes read their sizes: the keys of the operator's own tokens, and as how many heads
  // their last axis counts.
  struct Kept {
    std::string keys;
    int64_t heads;
  };
  std::map<std::string, Kept> kept;
};
// Before import: drops the inputs past* and outputs present* of single operators for attention (GroupQueryAttention,
// MultiHeadAttention, Attention), which then read the tokens of their inputs alone.
DroppedCache drop_operator_caches(onnx::GraphProto* graph);

// Of a language model that was exported with a cache: its inputs past* become empty, whether their number of earlier
// tokens is open or fixed, and its outputs present* are left out. `before`: what operators have lost already. Returns
// whether there were such. Throws Error that names the input where the model cannot do without it.
bool drop_cache(Model* model, const DroppedCache& before = {});
// Whether it has inputs past*.
bool has_cache(const Graph& graph);

// Makes the inner values `names` the outputs, in this order, and removes nodes, weights and inputs that only the old
// outputs need.
Pass cut(const std::vector<std::string>& names);

// Appends `other`, an imported model in the same precision: its inputs that have the name of an output read that
// output, which is no output any more; its other inputs are new inputs. Outputs are those that nothing reads, then
// those of `other`. Weights of `other` are trained as all others are. `name` is for messages: the file.
Pass join(std::shared_ptr<const Model> other, const std::string& name);

// `heads`: "logits=3". For each, looks back from the output to the last linear layer (linear_layers.h) that computes it
// alone, and gives that layer as many outputs: new weight and bias, uniform in ±1/√fan_in as torch.nn draws them, from
// `seed` and their names. What is computed from them gets new shapes; constants made for the old number are an error,
// except for the shape of a Reshape in which the number is found once.
Pass replace_heads(const std::vector<std::string>& heads, uint64_t seed);

struct VocabularySize {
  int64_t tokens = 0, multiple = 1;  // as many rows as there are tokens, or the next multiple
  bool is_least = false;             // a table that has more rows stays as it is; otherwise that is an error
};

// Gives the table that a language model looks its tokens up in as many rows, and the last layer of an output with a
// score for each token as many outputs. New ones are the mean of those that there are. A table that is the head's
// weight, too, stays one.
Pass resize_vocabulary(const VocabularySize& size);

enum class WeightsOfFile {
  kAll,        // a weight of the model that the file lacks is an error
  kSome,       // --weights-partial: the note lists those
  kOfAdapter,  // the file is not meant to have them
};

// Gives initializers the values of the arrays that have their names. Names that the model lacks are listed in the note.
// A shape or kind of type that does not fit is an error, except that a new head keeps its values. `source` is for
// messages: the file.
Pass assign_weights(std::shared_ptr<const std::map<std::string, Tensor>> arrays, const std::string& source,
                    WeightsOfFile wants = WeightsOfFile::kAll);

// Adds the adapters of `spec`; their parameters are drawn from `seed` and their names.
Pass add_adapters(const AdapterSpec& spec, uint64_t seed);

struct MergedAdapters {
  int layers = 0;  // that had an adapter
  // Weights of layers that shared theirs with what has no adapter, an embedding for example: the name of the weight
  // with the adapter in it, and the name of the other, which is as it was. One of the two is the shared weight's.
  std::vector<std::pair<std::string, std::string>> untied;
};

// The opposite: folds adapters into the weights beside them and removes their nodes and records. Of an inference model
// (strip_training). A weight with an adapter in it has the name that it has in the module of its layer.
MergedAdapters merge_adapters(Model* model);

// Removes adapters of low rank and their records, and leaves the weights beside them as they are. Likewise.
void take_out_adapters(Model* model);

}  // namespace onnx_train
