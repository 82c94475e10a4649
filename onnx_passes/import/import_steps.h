// import_model (import.h) as a pipeline of passes. Functions on a model that one caller owns; they throw Error that
// names the node.
#pragma once

#include <functional>
#include <vector>

#include "onnx_passes/import/import.h"
#include "onnx_passes/model/build_options.h"
#include "onnx_passes/pipeline/pass_rows.h"

namespace onnx_train {

struct ModelMessage;

// The steps of an import on a model, in order, once the nodes of its message are ordered and its functions inlined.
// They share what they find besides, so each result is for one model.
std::vector<PassRow> import_rows(const ImportOptions& options, std::vector<Finding>* findings = nullptr);

// import_model with these steps run as `pipeline` says.
Model import_model(ModelMessage message, const ImportOptions& options, std::vector<Finding>* findings,
                   const PipelineOptions& pipeline);

// ---- normal_form.cc: one form for what exporters write in several ways

// Calls `f` for the graph and all graphs in it.
void for_each_graph(Graph* graph, const std::function<void(Graph*)>& f);
void drop_inputs_with_values(Graph* graph);
void own_outputs(Graph* graph);
void name_nodes(Graph* graph);
void normalize_nodes(Graph* graph);
void sort_constants(Graph* graph);
void name_dimensions(Graph* graph);
void forget_types(Graph* graph);
// Throws Error that names a node which its schema does not allow.
void verify_nodes(Graph* graph);
void rename_shadows(Graph* graph);

}  // namespace onnx_train
