// What a file says of its initializers. PyTorch's exporter writes into `value_info` whether an initializer is a
// parameter or a buffer of the module, and from which ones an initializer was folded; the graph's metadata list all of
// them (torch.export's graph signature). Importing keeps that as metadata of the tensors: "onnx_train.origin" and
// "onnx_train.original_names". Functions on a model that one caller owns.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

enum class Origin {
  kUnknown,    // the file says nothing
  kParameter,  // of the module, or folded from one; or a weight that the training model in the file trains
  kNamed,      // a single number with a name that PyTorch gives to parameters and buffers, not to literals
  kConstant,   // a buffer or a constant of the code, or folded from such alone
  kComputed,   // folded from parameters that are weights elsewhere (folded_parameters.h)
};

// Moves what the message says of the float initializers of its graph to their tensors, where passes keep it. A tensor
// that has an origin already, as in a file that was exported from a training model, keeps it. Where PyTorch's exporter
// has written no more than names, a single number has the origin kNamed if its name is none of a literal.
void keep_origins(onnx::ModelProto* model);

// Whether PyTorch's exporters give this name to an attribute of a module, "blocks.0.act.scale", "viscosity", and not to
// a literal or a result: "/Constant_3_output_0", "onnx::Mul_12", "val_3", "clone", "12".
bool is_name_in_module(const std::string& name);

// An initializer that is a parameter, and so a weight whatever it looks like. Large contents are shared, not copied.
std::shared_ptr<const onnx::TensorProto> make_parameter(const std::string& name, const Tensor& contents);
// An initializer that counts as a buffer: no reader of it makes it a weight.
std::shared_ptr<const onnx::TensorProto> make_buffer(const std::string& name, const Tensor& contents);

// Metadata of an initializer whose elements, 8 bits here, were 4 bits in the file.
inline constexpr const char* kFourBits = "onnx_train.four_bits";
// Whether the value, which may be null, is such an initializer.
bool had_four_bits(const Value* value);

Origin origin_of(const Value& initializer);
// Gives it the origin kComputed. A new value may take its place.
void set_computed(Value* initializer);
// Gives it the origin kConstant unless the file calls it a parameter. Returns the initializer, which may be a new
// value.
Value* set_buffer(Value* initializer);
// Whether PyTorch's exporter folded it by operators of which one repeats elements, as their names say.
bool may_be_repeated(const Value& initializer);
// The names that an initializer's values have in the PyTorch module, if they differ from its own: {"layers.0.q.weight"}
// for "val_17". Several if it was folded from several parameters.
std::vector<std::string> original_names(const Value& initializer);
// These, and the names of initializers that were tied to it.
std::vector<std::string> other_names(const Value& initializer);
// Adds the name of an initializer that has been tied to it. Returns the initializer, which may be a new value.
Value* add_other_name(Value* initializer, const std::string& name);

// The module that PyTorch's older exporter names a node after: "layers.0.q" of "/layers.0/q/MatMul", "net.0" of
// "/net/net.0/Relu"; "" for other names.
std::string module_of_scope(const std::string& node);
// Whether `scope`, as module_of_scope tells it, may be `module`: it has some of its names in order, and the last one.
// "q" may be "heads.q" of a ModuleDict, which is called for its modules alone.
bool may_be_scope_of(const std::string& scope, const std::string& module);
// What reads a weight: the node that reads its transpose, if one alone does.
const Node& reader_of(const Use& use);
// The name that a weight has in the module of a node that reads it; "" where the file does not tell the module.
std::string name_at_reader(const Value& weight, const Node& reader);
// The names that a weight has in the modules that read it, where these are not its own: "transformer.wte.weight" of a
// "lm_head.weight" that the embedding reads, too, and of which PyTorch's exporter writes one name. Where different
// operators read it, `unnamed` gets one whose module the file does not tell, unless it is null.
std::vector<std::string> names_of_readers(const Value& weight, const Node** unnamed = nullptr);

// [columns, rows] of a matrix [rows, columns].
Tensor transposed(const Tensor& matrix);

// PyTorch's exporter folds the transpose of a Linear layer's weight into a new initializer. Restores the parameter as
// the module has it, name and layout, in front of a Transpose; a parameter that is in the file, too, such as a tied
// embedding, is used again where its contents are the same. Types must be inferred. Returns the names of the
// parameters.
std::vector<std::string> restore_linear_weights(Graph* graph);

}  // namespace onnx_train
