#include "runtime/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// What the data order depends on.
std::map<std::string, std::string> settings_of(const TrainerOptions& options, const Dataset& data) {
  return {{"seed", std::to_string(options.seed)},
          {"batch-size", std::to_string(options.batch_size)},
          {"accumulate", std::to_string(options.accumulate)},
          {"shuffle", options.shuffle ? "yes" : "no"},
          {"samples", std::to_string(data.num_samples())}};
}

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// A scalar output; `otherwise` where the entry point has none of that role.
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
    : session_(*session), training_(*training), evaluation_(evaluation), options_(options), checkpoints_(session) {
  const std::string entry = training_entry(session_);
  if (options_.accumulate > 1 && entry == "step") {
    fail("the model takes whole steps; to accumulate over several batches, build it with --accumulate");
  }
  if (options_.batch_size < 1 || options_.accumulate < 1) fail("the batch size must be at least 1");
  if (training_.fixed_batch() > 0 && options_.batch_size != training_.fixed_batch()) {
    fail("the model's batch size is fixed at ", training_.fixed_batch(), ", not ", options_.batch_size,
         "; build it with --batch dynamic");
  }
  const int64_t n = training_.num_samples();
  samples_per_epoch_ = training_.fixed_batch() > 0 ? n / options_.batch_size * options_.batch_size : n;
  if (samples_per_epoch_ == 0) {
    fail("the data has ", n, " samples, fewer than the model's fixed batch of ", options_.batch_size);
  }
  steps_per_epoch_ = ceil_div(ceil_div(samples_per_epoch_, options_.batch_size), options_.accumulate);
  options_.schedule.total = total_steps();
  const auto curve = options_.schedule.curve;
  if (total_steps() == 0 && (curve == Schedule::Curve::kLinear || curve == Schedule::Curve::kCosine)) {
    fail("a linear or cosine schedule needs an end: give --epochs or --steps");
  }
  for (const InputSpec& spec : entry_inputs(session_.model(), entry == "step" ? "step" : "apply")) {
    if (spec.role == roles::kLearningRate) {
      learning_rate_ = spec.name;
      scalar_type_ = spec.type.dtype;
    }
    if (spec.role == roles::kClipNorm) clip_norm_ = spec.name;
  }
  position_.settings = settings_of(options_, training_);
}

int64_t Trainer::total_steps() const {
  int64_t by_epochs = 0;
  if (__builtin_mul_overflow(options_.epochs, steps_per_epoch_, &by_epochs)) {
    by_epochs = std::numeric_limits<int64_t>::max();
  }
  if (options_.epochs == 0 || options_.steps == 0) return std::max(by_epochs, options_.steps);
  return std::min(by_epochs, options_.steps);
}

void Trainer::resume(const TrainingPosition& position) {
  for (const auto& [key, value] : position_.settings) {
    const auto saved = position.settings.find(key);
    const std::string before = saved == position.settings.end() ? "nothing" : saved->second;
    if (before != value) {
      fail("cannot resume: ", key, " was ", before, " and is ", value, ", so the samples would come in another order");
    }
  }
  constexpr int64_t kMost = int64_t{1} << 53;
  const auto counts = [](int64_t n) { return n >= 0 && n <= kMost; };
  if (!counts(position.epoch) || !counts(position.step) || !counts(position.stale) || position.sample < 0 ||
      position.sample > samples_per_epoch_) {
    fail("cannot resume: the checkpoint's position is damaged: epoch ", position.epoch, ", step ", position.step,
         ", sample ", position.sample, " of ", samples_per_epoch_);
  }
  position_ = position;
  epoch_seen_ = position.best.has_value();
}

bool Trainer::finished() const { return total_steps() > 0 && position_.step >= total_steps(); }

StepReport Trainer::step() {
  const auto start = Clock::now();
  if (order_epoch_ != position_.epoch) {
    order_ = sample_order(training_.num_samples(), options_.seed, position_.epoch, options_.shuffle);
    order_epoch_ = position_.epoch;
  }
  StepReport report{};
  report.learning_rate = options_.schedule.rate(position_.step);
  TensorMap controls = {{learning_rate_, Tensor::full(scalar_type_, {}, report.learning_rate)}};
  if (options_.clip_norm) controls[clip_norm_] = Tensor::full(scalar_type_, {}, *options_.clip_norm);
  const bool whole = session_.has_entry("step");  // else the gradients of some batches make one step
  const std::string entry = whole ? "step" : "accumulate";
  double loss_sum = 0, accuracy_sum = 0;
  for (int64_t i = 0; i < options_.accumulate && position_.sample < samples_per_epoch_; ++i) {
    const int64_t samples = std::min(options_.batch_size, samples_per_epoch_ - position_.sample);
    training_.gather(order_.data() + position_.sample, samples, &inputs_);
    if (whole) {
      for (const auto& [name, value] : controls) inputs_.insert_or_assign(name, value);
    }
    const TensorMap& outputs = session_.run(entry, inputs_);
    const auto value = [&](const char* role, double otherwise) {
      return value_or(session_, entry, outputs, role, otherwise);
    };
    loss_sum += value(roles::kLoss, NAN) * static_cast<double>(samples);
    accuracy_sum += value(roles::kAccuracy, NAN) * static_cast<double>(samples);
    report.grad_norm = value(roles::kGradNorm, 0);
    report.samples += samples;
    position_.sample += samples;
  }
  if (!whole) report.grad_norm = value_or(session_, "apply", session_.run("apply", controls), roles::kGradNorm, 0);
  report.loss = loss_sum / static_cast<double>(report.samples);
  if (!std::isnan(accuracy_sum)) report.accuracy = accuracy_sum / static_cast<double>(report.samples);
  position_.loss_sum += loss_sum;
  report.epoch = position_.epoch + 1;
  report.step = ++position_.step;
  report.milliseconds = seconds_since(start) * 1e3;
  return report;
}

void Trainer::save(const std::vector<const char*>& names, TrainerEvents* events) {
  if (options_.folder.empty()) return;
  std::vector<std::string> paths;
  for (const char* name : names) paths.push_back(concat(options_.folder, "/", name));
  checkpoints_.save(position_, paths);
  for (const std::string& path : paths) events->on_checkpoint(path);
}

Metrics Trainer::evaluate_now() const {
  return evaluation_ ? evaluate(&session_, *evaluation_, options_.batch_size) : Metrics();
}

bool Trainer::end_epoch(TrainerEvents* events) {
  EpochReport report{};
  report.train_loss = position_.loss_sum / static_cast<double>(samples_per_epoch_);
  report.evaluation = evaluate_now();
  const auto evaluated = report.evaluation.find(roles::kLoss);
  const double loss = evaluated == report.evaluation.end() ? report.train_loss : evaluated->second;
  report.best = !position_.best || loss < *position_.best;
  position_.stale = report.best ? 0 : position_.stale + 1;
  if (report.best) position_.best = loss;
  position_.epoch += 1;
  position_.sample = 0;
  position_.loss_sum = 0;
  report.epoch = position_.epoch;
  report.step = position_.step;
  epoch_seen_ = true;
  events->on_epoch(report);
  return report.best;
}

StopReason Trainer::run(TrainerEvents* events, const std::atomic<bool>& interrupt) {
  const auto start = Clock::now();
  if (position_.step == 0) save({"last.onnx"}, events);
  while (!finished()) {
    checkpoints_.check();
    const StepReport report = step();
    if (!std::isfinite(report.loss) || !std::isfinite(report.grad_norm)) {
      fail("the loss is ", report.loss, " at step ", report.step, " (gradient norm ", report.grad_norm,
           ", learning rate ", report.learning_rate, "); lower --lr, add --warmup or --clip, or look at the data",
           options_.folder.empty() ? "" : concat("; ", options_.folder, "/last.onnx holds an earlier state"));
    }
    events->on_step(report);
    const bool epoch_ended = position_.sample >= samples_per_epoch_;
    bool best = epoch_ended && end_epoch(events);
    std::optional<StopReason> stop;
    if (options_.time_limit > 0 && seconds_since(start) >= options_.time_limit) stop = StopReason::kTimeLimit;
    if (epoch_ended && options_.early_stop > 0 && position_.stale >= options_.early_stop) stop = StopReason::kEarlyStop;
    if (finished()) stop = StopReason::kFinished;
    if (interrupt) stop = StopReason::kInterrupted;
    const bool due = options_.checkpoint_every > 0 && position_.step % options_.checkpoint_every == 0;
    best = best || (stop && !epoch_seen_);
    if (best) {
      save({"best.onnx", "last.onnx"}, events);
    } else if (epoch_ended || due || stop) {
      save({"last.onnx"}, events);
    }
    if (!stop) continue;
    checkpoints_.wait();
    return *stop;
  }
  checkpoints_.wait();
  return StopReason::kFinished;
}

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
    for (const auto& [output, value] : session->run("evaluate", inputs)) {
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
