#include "runtime/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/passes/expression.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string identity(const Dataset* data) {
  return data ? concat(data->num_samples(), " samples (", data->fingerprint(), ")") : "none";
}

// Fixed settings decide which network sees which samples in which order, and which losses are compared. The others
// affect only the steps that follow.
std::vector<Setting> settings_of(const TrainerOptions& o, const Dataset& training, const Dataset* evaluation,
                                 DType scalar_type) {
  const Schedule& s = o.schedule;
  const bool ends = s.curve == Schedule::Curve::kLinear || s.curve == Schedule::Curve::kCosine;
  constexpr auto kFixed = OnResume::kFixed, kMayChange = OnResume::kMayChange;
  return {{"model", o.model.empty() ? "not known" : o.model, kFixed},
          {"data", identity(&training), kFixed},
          {"eval-data", identity(evaluation), kFixed},
          {"scale", number_text(training.scale()), kFixed},
          {"dtype", scalar_type == DType::kDouble ? "float64" : "float32", kFixed},
          {"seed", std::to_string(o.seed), kFixed},
          {"batch-size", std::to_string(o.batch_size), kFixed},
          {"accumulate", std::to_string(o.accumulate), kFixed},
          {"no-shuffle", o.shuffle ? "false" : "true", kFixed},
          {"lr", number_text(s.peak), kMayChange},
          {"schedule", name_of(s.curve), kMayChange},
          {"schedule's steps", ends ? std::to_string(s.total) : "any", kMayChange},
          {"warmup", std::to_string(s.warmup), kMayChange},
          {"final-lr", number_text(s.end), kMayChange},
          {"step-every", s.step_every > 0 ? std::to_string(s.step_every) : "none", kMayChange},
          {"step-factor", number_text(s.step_factor), kMayChange},
          {"clip", o.clip_norm ? number_text(*o.clip_norm) : "none", kMayChange},
          {"eval-every", o.eval_every > 0 ? std::to_string(o.eval_every) : "none", kMayChange},
          {"early-stop", o.early_stop > 0 ? std::to_string(o.early_stop) : "none", kMayChange}};
}

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// A scalar output; `otherwise` if the entry point has no output of that role.
double value_or(const Session& session, const std::string& entry, const TensorMap& outputs, const char* role,
                double otherwise) {
  const std::string* name = session.output_name(entry, role);
  const auto found = name ? outputs.find(*name) : outputs.end();
  return found == outputs.end() || found->second.size() != 1 ? otherwise : found->second.at(0);
}

}  // namespace

std::string training_entry(const Session& session) {
  for (const char* entry : {"step", "accumulate"}) {
    if (session.has_entry(entry)) return entry;
  }
  fail("the model has neither an entry point 'step' nor 'accumulate'; make one with: onnx-train build");
}

Trainer::Trainer(Session* session, const Dataset* training, const Dataset* evaluation, const TrainerOptions& options)
    : session_(*session),
      training_(*training),
      evaluation_(evaluation),
      options_(options),
      checkpoints_(session),
      check_(training, session->model(), training_entry(*session)) {
  const std::string entry = training_entry(session_);
  if (options_.accumulate > 1 && entry == "step") {
    fail_as(ErrorCode::kUsage,
            "the model takes whole steps; to accumulate over several batches, build it with --accumulate");
  }
  if (options_.batch_size < 1 || options_.accumulate < 1)
    fail_as(ErrorCode::kUsage, "the batch size must be at least 1");
  if (training_.fixed_batch() > 0 && options_.batch_size != training_.fixed_batch()) {
    fail_as(ErrorCode::kUsage, "the model's batch size is fixed at ", training_.fixed_batch(), ", not ",
            options_.batch_size, "; build it with --batch dynamic");
  }
  const int64_t n = training_.num_samples();
  if (options_.batch_size > n) {
    fail_as(ErrorCode::kUsage, "the batch size is ", options_.batch_size, ", but the data has ", n,
            n == 1 ? " sample" : " samples");
  }
  samples_per_epoch_ = training_.fixed_batch() > 0 ? n / options_.batch_size * options_.batch_size : n;
  const int64_t batches = ceil_div(samples_per_epoch_, options_.batch_size);
  if (options_.accumulate > batches) {
    fail_as(ErrorCode::kUsage, "a step accumulates ", options_.accumulate, " batches, but an epoch has ", batches);
  }
  steps_per_epoch_ = ceil_div(batches, options_.accumulate);
  check_schedule();
  for (const InputSpec& spec : entry_inputs(session_.model(), entry == "step" ? "step" : "apply")) {
    if (spec.role == roles::kLearningRate) {
      learning_rate_ = spec.name;
      scalar_type_ = spec.type.dtype;
    }
    if (spec.role == roles::kClipNorm) clip_norm_ = spec.name;
  }
  settings_ = settings_of(options_, training_, evaluation_, scalar_type_);
  position_.settings = recorded(settings_);
}

void Trainer::check_schedule() {
  options_.schedule.total = total_steps();
  const auto curve = options_.schedule.curve;
  if (total_steps() == 0 && (curve == Schedule::Curve::kLinear || curve == Schedule::Curve::kCosine)) {
    fail_as(ErrorCode::kUsage, "a linear or cosine schedule needs an end: give --epochs or --steps");
  }
  if (total_steps() > 0 && options_.schedule.warmup > total_steps()) {
    fail_as(ErrorCode::kUsage, "the warm-up takes ", options_.schedule.warmup, " steps, but the training has ",
            total_steps());
  }
}

int64_t Trainer::total_steps() const {
  int64_t by_epochs = 0;
  if (__builtin_mul_overflow(options_.epochs, steps_per_epoch_, &by_epochs)) {
    by_epochs = std::numeric_limits<int64_t>::max();
  }
  if (options_.epochs == 0 || options_.steps == 0) return std::max(by_epochs, options_.steps);
  return std::min(by_epochs, options_.steps);
}

std::vector<std::string> Trainer::resume(const TrainingPosition& position) {
  std::vector<std::string> changes = compare(settings_, position.settings);
  constexpr int64_t kMost = int64_t{1} << 53;
  const auto counts = [](int64_t n) { return n >= 0 && n <= kMost; };
  if (!counts(position.epoch) || !counts(position.step) || !counts(position.stale) || !counts(position.loss_samples) ||
      position.sample < 0 || position.sample > samples_per_epoch_) {
    fail("cannot resume: the checkpoint's position is damaged: epoch ", position.epoch, ", step ", position.step,
         ", sample ", position.sample, " of ", samples_per_epoch_);
  }
  position_ = position;
  position_.settings = recorded(settings_);
  return changes;
}

bool Trainer::finished() const { return total_steps() > 0 && position_.step >= total_steps(); }

void Trainer::start_step(TrainerEvents* events) {
  const auto start = Clock::now();
  if (order_epoch_ != position_.epoch) {
    order_ = sample_order(training_.num_samples(), options_.seed, position_.epoch, options_.shuffle);
    order_epoch_ = position_.epoch;
  }
  const double rate = options_.schedule.rate(position_.step);
  TensorMap controls = {{learning_rate_, Tensor::full(scalar_type_, {}, rate)}};
  if (options_.clip_norm) controls[clip_norm_] = Tensor::full(scalar_type_, {}, *options_.clip_norm);
  const bool whole = session_.has_entry("step");  // otherwise the gradients of several batches make one step
  const int64_t step = position_.step + 1, begin = position_.sample;
  for (int64_t i = 0; i < options_.accumulate && position_.sample < samples_per_epoch_; ++i) {
    const int64_t samples = std::min(options_.batch_size, samples_per_epoch_ - position_.sample);
    training_.gather(order_.data() + position_.sample, samples, &inputs_);
    if (whole) {
      for (const auto& [name, value] : controls) inputs_.insert_or_assign(name, value);
    }
    start_run({whole ? "step" : "accumulate", step, position_.sample, samples, begin, rate, whole, start}, inputs_,
              events);
    position_.sample += samples;
  }
  if (!whole) start_run({"apply", step, begin, 0, begin, rate, true, start}, controls, events);
  ++position_.step;
}

// Throws Error with the text of `error`, which `run` caused, and the step and samples of `run`.
void Trainer::refuse(const BatchRun& run, const Error& error) const {
  if (run.samples == 0) fail_as(error.code(), "step ", run.step, ": ", error.what());
  const int64_t* rows = order_.data() + run.first_sample;
  const std::string fault = check_.first_fault(rows, run.samples);
  fail_as(error.code(), "step ", run.step, ": ", error.what(), "; ",
          fault.empty() ? describe_samples(rows, run.samples) : fault);
}

void Trainer::start_run(BatchRun run, const TensorMap& inputs, TrainerEvents* events) {
  try {
    session_.start(run.entry, inputs);
  } catch (const Error& error) {
    refuse(run, error);
  }
  runs_.push_back(std::move(run));
  if (session_.device().uses_host_memory()) finish_run(events);  // it is already complete
}

void Trainer::finish_run(TrainerEvents* events) {
  const BatchRun run = std::move(runs_.front());
  runs_.pop_front();
  const TensorMap* outputs = nullptr;
  try {
    outputs = &session_.finish();
  } catch (const Error& error) {
    runs_.clear();  // the session has abandoned them
    refuse(run, error);
  }
  const auto value = [&](const char* role, double otherwise) {
    return value_or(session_, run.entry, *outputs, role, otherwise);
  };
  if (run.samples > 0) {
    loss_sum_ += value(roles::kLoss, NAN) * static_cast<double>(run.samples);
    accuracy_sum_ += value(roles::kAccuracy, NAN) * static_cast<double>(run.samples);
    report_.samples += run.samples;
  }
  report_.grad_norm = value(roles::kGradNorm, 0);
  if (run.ends_step) report_step(run, events);
}

void Trainer::report_step(const BatchRun& run, TrainerEvents* events) {
  StepReport report = std::exchange(report_, {});
  const double loss_sum = std::exchange(loss_sum_, 0), accuracy_sum = std::exchange(accuracy_sum_, 0);
  report.loss = loss_sum / static_cast<double>(report.samples);
  if (!std::isnan(accuracy_sum)) report.accuracy = accuracy_sum / static_cast<double>(report.samples);
  position_.loss_sum += loss_sum;
  position_.loss_samples += report.samples;
  report.epoch = position_.epoch + 1;
  report.step = run.step;
  report.learning_rate = run.learning_rate;
  report.milliseconds = seconds_since(std::max(run.start, last_report_)) * 1e3;
  last_report_ = Clock::now();
  check_finite(run, report);
  events->on_step(report);
}

void Trainer::finish_runs(int64_t step, TrainerEvents* events) {
  while (!runs_.empty() && runs_.front().step <= step) finish_run(events);
}

void Trainer::save(bool best, bool last, bool at_end, TrainerEvents* events) {
  std::vector<std::string> paths;
  if (best) paths.push_back(options_.folder + "/best.onnx");
  if (last) paths.push_back(options_.folder + "/last.onnx");
  if (options_.folder.empty() || paths.empty()) return;
  at_end ? checkpoints_.save_and_wait(position_, paths) : checkpoints_.save(position_, paths);
  for (const std::string& path : paths) events->on_checkpoint(path);
}

// The evaluation at the end is an additional one: it may find the best state, but the mean of the training loss
// continues and patience does not count it, so that a resumed training evaluates like one that never stopped.
bool Trainer::evaluate_now(int64_t epoch, bool at_end, TrainerEvents* events) {
  EvaluationReport report{};
  report.epoch = epoch;
  report.step = position_.step;
  report.train_loss = position_.loss_sum / static_cast<double>(position_.loss_samples);
  if (evaluation_) report.evaluation = evaluate(&session_, *evaluation_, options_.batch_size);
  const auto evaluated = report.evaluation.find(roles::kLoss);
  const double loss = evaluated == report.evaluation.end() ? report.train_loss : evaluated->second;
  report.best = std::isfinite(loss) && (!position_.best || loss < *position_.best);
  if (report.best) position_.best = loss;
  if (!at_end) {
    position_.stale = report.best ? 0 : position_.stale + 1;
    position_.loss_sum = 0;
    position_.loss_samples = 0;
  }
  events->on_evaluation(report);
  return report.best;
}

StopReason Trainer::run(TrainerEvents* events, const std::atomic<bool>& interrupt) {
  const auto start = Clock::now();
  if (position_.step == 0) save(/*best=*/false, /*last=*/true, /*at_end=*/false, events);
  while (!finished()) {
    checkpoints_.check();
    start_step(events);
    const bool epoch_ended = position_.sample >= samples_per_epoch_;
    const bool due = options_.eval_every > 0 ? position_.step % options_.eval_every == 0 : epoch_ended;
    // Finishes the previous step, which is complete by now or nearly so. Before an evaluation and at the end of an
    // epoch, finishes all steps.
    finish_runs(epoch_ended || due ? position_.step : position_.step - 1, events);
    const int64_t epoch = position_.epoch + 1;
    if (epoch_ended) {
      position_.epoch += 1;
      position_.sample = 0;
    }
    bool best = due && evaluate_now(epoch, /*at_end=*/false, events);
    std::optional<StopReason> stop;
    if (options_.time_limit > 0 && seconds_since(start) >= options_.time_limit) stop = StopReason::kTimeLimit;
    if (due && options_.early_stop > 0 && position_.stale >= options_.early_stop) stop = StopReason::kEarlyStop;
    if (finished()) stop = StopReason::kFinished;
    if (interrupt) stop = StopReason::kInterrupted;
    const bool keep = options_.checkpoint_every > 0 && position_.step % options_.checkpoint_every == 0;
    if (stop || keep) finish_runs(position_.step, events);
    if (stop && !due && stop != StopReason::kInterrupted) {
      best = evaluate_now(epoch, /*at_end=*/true, events);
    }
    save(best || (stop && !position_.best), epoch_ended || keep || stop, stop.has_value(), events);
    if (stop) return *stop;
  }
  checkpoints_.wait();
  return StopReason::kFinished;
}

void Trainer::check_finite(const BatchRun& run, const StepReport& report) const {
  if (std::isfinite(report.loss) && std::isfinite(report.grad_norm)) return;
  const int64_t* rows = order_.data() + run.step_begin;
  const std::string fault = check_.first_fault(rows, report.samples);
  fail("the loss is ", report.loss, " at step ", report.step, " (gradient norm ", report.grad_norm, ", learning rate ",
       report.learning_rate, ") ", describe_samples(rows, report.samples), "; ",
       fault.empty() ? "lower --lr, add --warmup or --clip, or look at the data" : fault,
       options_.folder.empty() ? "" : concat("; ", options_.folder, "/last.onnx holds an earlier state"));
}

namespace {

const TensorMap& run_samples(Session* session, const Dataset& data, const int64_t* rows, int64_t count,
                             const TensorMap& inputs) {
  try {
    return session->run("evaluate", inputs);
  } catch (const Error& e) {
    const std::string fault = DataCheck(&data, session->model(), "evaluate").first_fault(rows, count);
    fail_as(e.code(), "evaluation: ", e.what(), "; ", fault.empty() ? describe_samples(rows, count) : fault);
  }
}

}  // namespace

Metrics evaluate(Session* session, const Dataset& data, int64_t batch_size) {
  const int64_t n = data.num_samples();
  if (data.fixed_batch() > 0) batch_size = data.fixed_batch();
  if (data.fixed_batch() > 0 && n % batch_size != 0) {
    fail("the model's batch size is fixed at ", batch_size, ", and ", n, " samples leave a short last batch; build it ",
         "with --batch dynamic");
  }
  const std::string kinds_text = session->model().metadata("onnx_train.outputs");
  const auto kinds = nlohmann::json::parse(kinds_text, nullptr, /*allow_exceptions=*/false);
  const auto kind_of = [&](const std::string& name) {
    const bool known = kinds.is_object() && kinds.contains(name) && kinds.at(name).is_string();
    return known ? kinds.at(name).get<std::string>() : "mean";
  };
  std::vector<int64_t> rows(static_cast<size_t>(n));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  Metrics metrics;
  TensorMap inputs;
  for (int64_t at = 0; at < n; at += batch_size) {
    const int64_t samples = std::min(batch_size, n - at);
    data.gather(rows.data() + at, samples, &inputs);
    for (const auto& [output, value] : run_samples(session, data, rows.data() + at, samples, inputs)) {
      if (value.size() != 1) continue;
      const std::string name = session->metric_name("evaluate", output);
      const std::string kind = kind_of(name);
      const double weight = kind == "mean" ? static_cast<double>(samples) / static_cast<double>(n) : 1;
      metrics[name] = (kind == "last" ? 0 : metrics[name]) + weight * value.at(0);
    }
  }
  return metrics;
}

}  // namespace onnx_train
