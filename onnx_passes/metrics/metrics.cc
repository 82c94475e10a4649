#include "onnx_passes/metrics/metrics.h"

#include <algorithm>
#include <map>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/loss/loss_resolution.h"
#include "onnx_passes/loss/loss_terms.h"
#include "onnx_passes/loss/probabilities.h"
#include "onnx_passes/loss/term_builder.h"
#include "onnx_passes/model/entry_point.h"

namespace onnx_train {
namespace {

const Word& prediction_name(const LossTerm& term) { return term.arguments.names[0]; }
const Word& target_name(const LossTerm& term) { return term.arguments.names[num_predictions(*term.row)]; }

void set_option(LossTerm* term, const std::string& key, double value) {
  term->arguments.options.push_back({{key, false, 0}, value, 0});
}

// Resolves one metric of a model with a resolved loss.
class MetricResolver {
 public:
  MetricResolver(Metric* metric, const Model& model, const std::vector<LossTerm>& losses, const Graph* teacher,
                 const std::string& text)
      : metric_(*metric),
        term_(metric->term),
        losses_(losses),
        scope_(*model.graph, teacher, model.find_entry_point(Entry::kEvaluate)->algorithm.get()),
        reader_("--metric", text) {}

  void run() {
    adopt();
    std::vector<LossTerm> terms = {term_};
    resolve(&terms, scope_, reader_);
    term_ = terms[0];
    if (holds_floats(term_, 1, scope_.find(target_name(term_).text)) && !flag_of(term_, "multilabel")) {
      set_option(&term_, "multilabel", 1);
    }
    check_average();
    const bool is_probability = probabilities_of(*scope_.find(prediction_name(term_).text)).has_value();
    const bool may_say = find_option(*term_.row, "probabilities") && !find_option(term_, "probabilities");
    if (is_probability && may_say) set_option(&term_, "probabilities", 1);
  }

  // The accuracy that the loss gives: of its first term over class indices.
  bool is_accuracy_of_loss() const {
    if (metric_.name != roles::kAccuracy || term_.row != &find_metric(roles::kAccuracy)->term) return false;
    const auto of_indices = [&](const LossTerm& loss) {
      return loss.row->prediction == Prediction::kClasses && !has_floats(loss);
    };
    const auto found = std::ranges::find_if(losses_, of_indices);
    return found != losses_.end() && same_arguments(*found) && !find_option(term_, "sample_weight") &&
           integer_of(*found, "axis") == integer_of(term_, "axis") &&
           integer_of(*found, "ignore_index") == integer_of(term_, "ignore_index");
  }

 private:
  bool has_floats(const LossTerm& loss) const { return holds_floats(loss, 1, scope_.find(target_name(loss).text)); }

  // Whether the metric can be of the prediction and the target of a term.
  bool fits(const LossTerm& loss) const {
    const Prediction prediction = prediction_of(loss);
    if (term_.row->arguments[1].kind != ArgumentKind::kIndices) return prediction == Prediction::kEstimate;
    if (prediction == Prediction::kYesNo) return term_.row->arguments[1].floats_option;
    return prediction == Prediction::kClasses && !has_floats(loss);
  }

  void check_average() const {
    const Option* average = find_option(term_, "average");
    if (!average || choice_of(term_, "average") != "binary") return;
    const Value& prediction = *scope_.find(prediction_name(term_).text);
    if (prediction.rank() < 2) return;
    const Dim& classes = (*prediction.type().dims)[static_cast<size_t>(integer_of(term_, "axis"))];
    if (!classes.known() || classes.value() <= 2) return;
    reader_.fail_at(average->column, concat("average=binary is for at most two classes, and '", prediction.name(),
                                            "' has ", classes.value()));
  }

  bool same_arguments(const LossTerm& loss) const {
    const auto& names = term_.arguments.names;
    return (names.empty() || names[0].text == prediction_name(loss).text) &&
           (names.size() < 2 || names[1].text == target_name(loss).text);
  }

  void adopt() {
    auto& names = term_.arguments.names;
    for (const LossTerm& loss : losses_) {
      if (!fits(loss) || !same_arguments(loss)) continue;
      names = {{prediction_name(loss).text, false, term_.loss.column},
               {target_name(loss).text, false, term_.loss.column}};
      for (const char* key : {"axis", "ignore_index"}) {
        const bool both = find_option(*loss.row, key) && find_option(*term_.row, key);
        if (both && !find_option(term_, key)) set_option(&term_, key, number_of(loss, key));
      }
      return;
    }
    if (!names.empty()) return;
    const std::string arguments =
        concat(term_.row->name, "(", term_.row->arguments[0].name, ", ", term_.row->arguments[1].name, ")");
    reader_.fail_at(term_.loss.column, concat("the loss has no prediction and target that ", term_.row->name,
                                              " can take; name them: ", arguments));
  }

  Metric& metric_;
  LossTerm& term_;
  const std::vector<LossTerm>& losses_;
  const LossScope scope_;
  const ExpressionReader reader_;
};

bool run(Model& model, const BuildOptions& options) {
  if (options.metrics.empty()) return false;
  std::vector<LossTerm> losses;
  if (!options.loss_model) losses = parse_loss(model.metadata("onnx_train.loss"));
  std::erase_if(losses, [](const LossTerm& term) {  // outputs that are the loss
    return !term.row || term.arguments.names.size() <= num_predictions(*term.row);
  });
  EntryPoint& evaluation = *model.find_entry_point(Entry::kEvaluate);
  const Graph* teacher = options.teacher ? evaluation.algorithm.get() : nullptr;
  Builder b(evaluation.algorithm.get());
  LossBuilder builder(&b, *model.graph, [](Value* v) { return v; });
  std::map<std::string, Value*> statistics;
  std::vector<std::string> resolved;
  std::set<std::string> names;
  for (const Value* output : evaluation.algorithm->outputs()) {
    names.insert(output->role() ? output->role()->name : output->name());
  }
  for (const std::string& text : options.metrics) {
    Metric metric = parse_metric(text);
    MetricResolver resolver(&metric, model, losses, teacher, text);
    resolver.run();
    if (resolver.is_accuracy_of_loss()) continue;
    if (!names.insert(metric.name).second) {
      ExpressionReader("--metric", text)
          .fail_at(1, concat("the evaluation has a '", metric.name,
                             "' already; give this one a name: other=", to_string(metric.term)));
    }
    resolved.push_back(to_string(metric));
    Value*& statistic = statistics[statistic_of(metric)];
    if (statistic) continue;
    b.set_name("metric/" + metric.name);
    TermBuilder term(&builder, metric.term, *metric.term.row);
    const Var sums = metric.row->statistic->build(term);
    statistic = add_result(&evaluation, metric.row->statistic->name, sums);
    statistic->set_role({roles::kStatistic, statistic_of(metric)});
  }
  if (resolved.empty()) return false;
  model.set_metadata(kMetrics, json_list(resolved));
  std::string kinds = model.metadata("onnx_train.outputs");
  kinds.insert(kinds.rfind('}'), concat(", \"", roles::kStatistic, "\": \"sum\""));
  model.set_metadata("onnx_train.outputs", kinds);
  return true;
}

}  // namespace

Metric parse_metric(const std::string& text) {
  ExpressionReader reader("--metric", text);
  Metric metric{"", {}, nullptr};
  LossTerm& term = metric.term;
  term.loss = reader.word("a metric");
  metric.name = term.loss.text;
  if (reader.take('=')) term.loss = reader.word("a metric");
  metric.row = find_metric(term.loss.text);
  if (!metric.row) {
    std::string all;
    for (const std::string& name : metric_names()) all += concat(all.empty() ? "" : ", ", name);
    reader.fail_at(term.loss.column, concat("there is no metric '", term.loss.text, "'; there is ", all,
                                            did_you_mean(term.loss.text, metric_names())));
  }
  term.row = &metric.row->term;
  read_call(&reader, &term);
  if (!reader.at_end()) reader.fail_at(reader.column(), "a metric ends here; give --metric once for each");
  return metric;
}

std::string to_string(const Metric& metric) {
  const std::string text = to_string(metric.term);
  return metric.name == metric.row->term.name ? text : concat(quoted_if_needed(metric.name), "=", text);
}

std::string statistic_of(const Metric& metric) {
  LossTerm term = metric.term;
  term.loss.text = metric.row->statistic->name;
  std::erase_if(term.arguments.options, [&](const Option& option) {
    return find_option(*term.row, option.key.text)->kind == OptionKind::kChoice;
  });
  return to_string(term);
}

std::vector<std::string> metric_names() {
  std::vector<std::string> names;
  for (const MetricRow& row : metric_rows()) names.emplace_back(row.term.name);
  return names;
}

Pass metrics(const BuildOptions& options) {
  return {"metrics", [options](Model& model) { return run(model, options); }};
}

}  // namespace onnx_train
