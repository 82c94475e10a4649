#include "runtime/models/build_notes.h"

#include <algorithm>
#include <iterator>

#include <nlohmann/json.hpp>

#include "onnx_passes/import/lost_layers.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/loss/loss_model.h"
#include "onnx_passes/loss/pairs.h"
#include "onnx_passes/loss/probabilities.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/quantization/import_qdq.h"
#include "onnx_passes/weights/folded_parameters.h"
#include "runtime/data/preprocess.h"
#include "runtime/models/check_report.h"

namespace onnx_train {
namespace {

constexpr const char* kNotes = "onnx_train.notes";

bool has_products(const Graph& graph) {
  for (const Node* node = graph.first(); node; node = node->next()) {
    if (operator_of(*node).precision == PrecisionRole::kProduct) return true;
    for (const auto& subgraph : node->subgraphs()) {
      if (has_products(*subgraph.graph)) return true;
    }
  }
  return false;
}

// Weights that are integers in the file stay so.
void note_integers(const Model& forward, std::vector<Finding>* notes) {
  const std::vector<const Value*> stored = quantized_weights(*forward.graph);
  if (stored.empty()) return;
  const auto name = [](const Value* value) { return concat("'", value->name(), "'"); };
  notes->push_back(
      {first_few(stored, size_t{3}, name),
       stored.size() == 1 ? "is a weight in integers, and frozen" : "are weights in integers, and frozen",
       "--lora rank=8 trains adapters beside them; --train NAME makes floats of one, and trains it alone"});
}

// Mixed precision leaves the bodies of control flow as they are.
void note_bodies(const Model& forward, std::vector<Finding>* notes) {
  for (const Node* node = forward.graph->first(); node; node = node->next()) {
    const auto& subgraphs = node->subgraphs();
    if (std::none_of(subgraphs.begin(), subgraphs.end(), [](const auto& s) { return has_products(*s.graph); }))
      continue;
    notes->push_back({node->label(), "has products, which are computed in float32",
                      "--precision changes nothing in the bodies of If, Loop and Scan; an export with the control flow "
                      "unrolled, or with LSTM or GRU in its place, has them in 16 bits"});
  }
}

// Both read one batch: what is done to the data fits one of the two.
void note_teacher(const Model& forward, const LossModel& teacher, std::vector<Finding>* notes) {
  const Preprocess own(forward), others(teacher.model);
  if (others.empty()) return;
  if (own.empty()) {
    notes->push_back({"preprocessing", concat("is that of the teacher ", teacher.name, ": ", others.text()),
                      "fit --preprocess takes another"});
  } else if (!own.same(others)) {
    notes->push_back({"preprocessing",
                      concat("of the model, ", own.text(), ", differs from that of the teacher ", teacher.name, ", ",
                             others.text(), "; both read the same batch"),
                      "fit --preprocess says which; train the teacher on data that are preprocessed as the model's"});
  }
}

// Of the metadata of a file, which may hold anything.
std::vector<Finding> read_notes(const std::string& text) {
  std::vector<Finding> notes;
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array()) return notes;
  for (const auto& row : json) {
    const auto is_text = [](const auto& field) { return field.is_string(); };
    if (row.is_array() && row.size() == 3 && std::all_of(row.begin(), row.end(), is_text))
      notes.push_back({row[0], row[1], row[2]});
  }
  return notes;
}

}  // namespace

std::vector<Finding> build_notes(const Model& forward, const BuildOptions& options, std::vector<Finding> imported) {
  std::vector<Finding> notes = describe_predictions(*forward.graph, options);
  const auto add = [&](std::vector<Finding> found) {
    std::move(found.begin(), found.end(), std::back_inserter(notes));
  };
  add(describe_constants(forward, select_trainable(forward, options.train, options.freeze)));
  add(describe_folded_parameters(*forward.graph));
  add(inspect(forward));
  add(find_lost_layers(forward));
  note_integers(forward, &notes);
  if (options.precision != Precision::kFloat32) note_bodies(forward, &notes);
  if (options.teacher) note_teacher(forward, *options.teacher, &notes);
  add(std::move(imported));
  return notes;
}

void add_built_notes(const Model& training, std::vector<Finding>* notes) {
  if (const std::string statistics = training.metadata("onnx_train.batch_norm"); !statistics.empty())
    notes->push_back({"batch normalization", statistics, "those kept normalize as in inference"});
  if (const std::string names = training.metadata("onnx_train.not_trained"); !names.empty())
    notes->push_back({"weights", concat("the loss does not depend on ", names), "they are not trained"});
  if (const std::string what = training.metadata(kReference); what.starts_with("a frozen copy"))
    notes->push_back({"the reference of dpo", "is " + what, "--lora shares the weights in the place of copying them"});
  if (training.metadata("onnx_train.rounded") != "0") return;
  notes->push_back(
      {concat("precision ", training.metadata("onnx_train.precision")), "rounds no operator of this model",
       "it rounds products of matrices, convolutions, lookups and recurrent layers outside of control flow"});
}

std::vector<PassTiming> build_with_notes(Model* model, const BuildOptions& options, std::vector<Finding> imported) {
  std::vector<Finding> notes = build_notes(*model, options, std::move(imported));
  std::vector<PassTiming> timings = build_training_model(model, options);
  add_built_notes(*model, &notes);
  record_notes(notes, model);
  return timings;
}

void record_notes(const std::vector<Finding>& notes, Model* training) {
  nlohmann::json json = nlohmann::json::array();
  for (const Finding& note : notes) json.push_back({note.subject, note.what, note.advice});
  // A name may hold bytes that are no UTF-8.
  training->set_metadata(kNotes, json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::vector<Finding> recorded_notes(const Model& training) { return read_notes(training.metadata(kNotes)); }

std::vector<Finding> recorded_notes(const onnx::ModelProto& training) {
  for (const auto& entry : training.metadata_props()) {
    if (entry.key() == kNotes) return read_notes(entry.value());
  }
  return {};
}

std::string notes_text(const std::vector<Finding>& notes, size_t width, size_t shown) {
  if (notes.empty()) return "";
  std::string text = "\nWorth knowing:\n";
  for (size_t i = 0; i < std::min(notes.size(), shown); ++i) {
    text += to_text(notes[i].subject, notes[i].what, notes[i].advice, width);
  }
  if (notes.size() <= shown) return text;
  return concat(text, "  and ", notes.size() - shown, " more: onnx-train check of the forward model\n");
}

}  // namespace onnx_train
