#include "runtime/training/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/collectives.h"
#include "onnx_passes/io/file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/loss/pairs.h"
#include "onnx_passes/text/expression.h"
#include "runtime/support/report_text.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Fixed settings decide which network sees which samples in which order, and which losses are compared. The others
// affect only the steps that follow.
std::vector<Setting> settings_of(const TrainerOptions& o, const BatchSource& training, const BatchSource* evaluation,
                                 DType scalar_type) {
  const Schedule& s = o.schedule;
  constexpr auto kFixed = OnResume::kFixed, kMayChange = OnResume::kMayChange;
  std::vector<Setting> settings = {
      {"model", o.model.empty() ? "not known" : o.model, kFixed,
       "; give the model with the weights of the start, or a checkpoint of the run: last.onnx in its folder"},
      {"data", training.identity(), kFixed},
      {"eval-data", evaluation ? evaluation->identity() : "none", kFixed},
      {"scale", training.scale(), kFixed},
      {"preprocess", training.preprocess(), kFixed},
      {"augment", training.augment(), kFixed},
      {"dtype", scalar_type == DType::kDouble ? "float64" : "float32", kFixed},
      {"seed", std::to_string(o.seed), kFixed},
      {"batch-size", std::to_string(o.batch_size), kFixed},
      {"accumulate", std::to_string(o.accumulate), kFixed},
      {"no-shuffle", o.shuffle ? "false" : "true", kFixed},
      {"lr", number_text(s.peak), kMayChange},
      {"schedule", to_string(s.curve), kMayChange},
      {"schedule's steps", s.curve.needs_end() ? std::to_string(s.total) : "any", kMayChange},
      {"warmup", std::to_string(s.warmup), kMayChange},
      {"clip", o.clip_norm ? number_text(*o.clip_norm) : "none", kMayChange},
      {"eval-every", o.eval_every > 0 ? std::to_string(o.eval_every) : "none", kMayChange},
      {"early-stop", o.early_stop > 0 ? std::to_string(o.early_stop) : "none", kMayChange},
      {"min-delta", o.min_delta > 0 ? number_text(o.min_delta) : "none", kMayChange},
      {"stop-at", o.stop_at.empty() ? "none" : o.stop_at, kMayChange},
      {"best", o.best == roles::kLoss ? "none" : o.best, kFixed}};
  settings.insert(settings.end(), o.recorded.begin(), o.recorded.end());
  return settings;
}

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// A scalar output; `otherwise` if the entry point has no output of that role.
double value_or(const Session& session, const EntryName& entry, const TensorMap& outputs, const char* role,
                double otherwise) {
  const std::string* name = session.output_name(entry, role);
  const auto found = name ? outputs.find(*name) : outputs.end();
  return found == outputs.end() || found->second.size() != 1 ? otherwise : found->second.at(0);
}

// The tokens of each sample where two inputs or more are integers [samples, tokens]: texts, with labels or masks. 0
// where the batch is none of texts.
int64_t tokens_of_sample(const TensorMap& batch) {
  std::map<Shape, int> count;
  for (const auto& [name, x] : batch) {
    const Shape& shape = x.shape();
    if (is_integer(x.dtype()) && shape.size() == 2 && shape[1] > 1 && ++count[shape] == 2) return shape[1];
  }
  return 0;
}

}  // namespace

std::vector<std::string> step_metrics(const Model& model) {
  std::vector<std::string> names;
  const EntryPoint* point = model.training_entry_point();
  for (const Value* output : point ? point->algorithm->outputs() : std::vector<Value*>()) {
    if (output->role() && output->role()->name.starts_with(kRewards)) names.push_back(output->role()->name);
  }
  return names;
}

Entry training_entry(const Session& session) {
  if (const EntryPoint* point = session.model().training_entry_point()) return point->name().kind();
  fail_as(ErrorCode::kNoEntryPoint, "the model has neither an entry point '", name_of(Entry::kStep), "' nor '",
          name_of(Entry::kAccumulate), "'; make one with: onnx-train build");
}

Trainer::Trainer(Session* session, const Dataset* training, const Dataset* evaluation, const TrainerOptions& options)
    : Trainer(session,
              std::make_unique<DatasetBatches>(training, session->model(), training_entry(*session), options.batch_size,
                                               options.seed, options.shuffle, options.samples),
              evaluation ? std::make_unique<DatasetBatches>(evaluation, session->model(), options.batch_size) : nullptr,
              options) {}

Trainer::Trainer(Session* session, std::unique_ptr<BatchSource> training, std::unique_ptr<BatchSource> evaluation,
                 const TrainerOptions& options)
    : session_(*session),
      training_(std::move(training)),
      evaluation_(std::move(evaluation)),
      options_(options),
      checkpoints_(session, options.checkpoint_shards, kMaxMessageBytes, options.checkpoint_base) {
  const Entry entry = training_entry(session_);
  if (options_.accumulate > 1 && entry == Entry::kStep) {
    fail_as(ErrorCode::kNeedsAccumulate,
            "the model takes whole steps; to accumulate over several batches, build it with --accumulate");
  }
  if (options_.accumulate < 1) fail_as(ErrorCode::kUsage, "the batch size must be at least 1");
  samples_per_epoch_ = training_->samples_per_epoch();
  const int64_t batches = training_->batches_per_epoch();
  if (batches > 0 && options_.accumulate > batches) {
    fail_as(ErrorCode::kUsage, "a step accumulates ", options_.accumulate, " batches, but an epoch has ", batches);
  }
  steps_per_epoch_ = ceil_div(batches, options_.accumulate);
  if (session_.topology().shares_batches() && entry == Entry::kStep) {
    fail_as(ErrorCode::kNeedsAccumulate,
            "ranks share out the batches of a step, and the model takes whole steps; build it with "
            "--accumulate");
  }
  training_->share_out(session_.topology().rounds(options_.accumulate));
  check_schedule();
  check_metric(options_.best, "the best ");
  if (!options_.stop_at.empty()) check_metric(parse_stop_target(options_.stop_at).metric, "--stop-at: the ");
  for (const InputSpec& spec : entry_inputs(session_.model(), entry == Entry::kStep ? Entry::kStep : Entry::kApply)) {
    if (spec.role == roles::kLearningRate) {
      learning_rate_ = spec.name;
      scalar_type_ = spec.type.dtype;
    }
    if (spec.role == roles::kClipNorm) clip_norm_ = spec.name;
  }
  reader_.emplace(session_, entry);
  metric_outputs_ = step_metrics(session_.model());
  if (!session_.model().metadata(kPairs).empty()) rows_of_sample_ = kRowsOfPair;
  settings_ = settings_of(options_, *training_, evaluation_.get(), scalar_type_);
  position_.settings = recorded(settings_);
}

// Whether the evaluation gives the metric is known before the first step.
void Trainer::check_metric(const std::string& metric, const char* wanted) const {
  if (metric == roles::kLoss) return;
  if (!evaluation_) {
    fail_as(ErrorCode::kNothingToEvaluate, wanted, metric, " needs data to evaluate on: --eval-data or --val-split");
  }
  std::vector<std::string> names;
  const LossReader reader(session_, Entry::kEvaluate);
  if (reader.has_loss()) names.emplace_back(roles::kLoss);
  if (reader.has_accuracy()) names.emplace_back(roles::kAccuracy);
  const MetricSums metrics(session_.model());
  for (const std::string& name : metrics.names()) names.push_back(name);
  const EntryPoint* point = session_.model().find_entry_point(Entry::kEvaluate);
  for (const Value* output : point ? point->algorithm->outputs() : std::vector<Value*>()) {
    const bool is_read = reader.reads(output->name()) || metrics.reads(output->name());
    if (!is_read) names.push_back(session_.metric_name(Entry::kEvaluate, output->name()));
  }
  if (std::count(names.begin(), names.end(), metric) > 0) return;
  std::string list;
  for (const std::string& name : names) list += concat(list.empty() ? "" : ", ", name);
  fail_as(ErrorCode::kUsage, "the evaluation gives no '", metric, "'; it gives ", list);
}

Trainer::~Trainer() {
  for (; !runs_.empty(); runs_.pop_front()) {
    try {
      session_.finish();
    } catch (const Error&) {
      return;  // the session has abandoned all of them
    }
  }
}

void Trainer::check_schedule() {
  options_.schedule.end_at(total_steps());
  // Epochs are of no use where data do not say how many batches one has.
  const char* const end = steps_per_epoch_ > 0
                              ? "give --epochs or --steps"
                              : "give --steps, since the data do not say how many batches an epoch has";
  if (total_steps() == 0 && options_.schedule.warmup_share > 0) {
    fail_as(ErrorCode::kUsage, "a warm-up that is a share of all steps needs to know their number: ", end);
  }
  if (total_steps() == 0 && options_.schedule.curve.needs_end()) {
    fail_as(ErrorCode::kUsage, "schedule ", to_string(options_.schedule.curve),
            " needs to know the number of steps: ", end);
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
  const auto& parts = position.loss.parts;
  const bool sums = std::all_of(parts.begin(), parts.end(),
                                [](const Mean& mean) { return std::isfinite(mean.sum) && std::isfinite(mean.count); });
  const ScheduleState& schedule = position.schedule;
  const bool rates = counts(schedule.stale) && counts(schedule.cooldown) && schedule.scale >= 0 && schedule.scale <= 1;
  if (!counts(position.epoch) || !counts(position.step) || !counts(position.stale) || !sums || !rates ||
      position.sample < 0 || (samples_per_epoch_ > 0 && position.sample > samples_per_epoch_)) {
    fail("cannot resume: the checkpoint's position is damaged: epoch ", position.epoch, ", step ", position.step,
         ", sample ", position.sample, " of ", samples_per_epoch_);
  }
  position_ = position;
  position_.settings = recorded(settings_);
  return changes;
}

// An epoch of unknown length ends when the source says so.
bool Trainer::finished() const {
  if (steps_per_epoch_ > 0 && samples_per_epoch_ > 0) return total_steps() > 0 && position_.step >= total_steps();
  return (options_.steps > 0 && position_.step >= options_.steps) ||
         (options_.epochs > 0 && position_.epoch >= options_.epochs);
}

bool Trainer::epoch_ended() const {
  return samples_per_epoch_ > 0 ? position_.sample >= samples_per_epoch_ : source_ended_;
}

bool Trainer::start_step(TrainerEvents* events) {
  const auto start = Clock::now();
  if (source_epoch_ != position_.epoch) {
    training_->start_at(position_.epoch, position_.sample, std::exchange(position_.place, ""));
    source_epoch_ = position_.epoch;
    source_ended_ = false;
    if (const std::string note = training_->note(); !note.empty()) note_once("data", note, events);
  }
  const double rate = options_.schedule.rate(position_.step, position_.schedule);
  TensorMap controls = {{learning_rate_, Tensor::full(scalar_type_, {}, rate)}};
  if (options_.clip_norm) controls[clip_norm_] = Tensor::full(scalar_type_, {}, *options_.clip_norm);
  const bool whole = session_.has_entry(Entry::kStep);  // otherwise the gradients of several batches make one step
  const int64_t step = position_.step + 1, begin = position_.sample;
  for (int64_t i = 0; i < options_.accumulate && !epoch_ended();) {
    std::vector<int64_t> batches = training_->next_round(&inputs_);
    if (batches.empty()) {
      source_ended_ = true;
      break;
    }
    const int64_t samples = std::accumulate(batches.begin(), batches.end(), int64_t{0});
    i += std::ssize(batches);
    const bool ends_epoch = samples_per_epoch_ > 0 && position_.sample + samples >= samples_per_epoch_;
    if (whole) {
      for (const auto& [name, value] : controls) inputs_.insert_or_assign(name, value);
    }
    start_run({whole ? Entry::kStep : Entry::kAccumulate, step, position_.sample, samples, begin, rate, whole,
               std::move(batches), start, i >= options_.accumulate || ends_epoch, tokens_of_sample(inputs_)},
              inputs_, events);
    position_.sample += samples;
  }
  if (position_.sample == begin) {
    if (begin == 0) fail_as(ErrorCode::kData, "epoch ", position_.epoch + 1, " of the data has no batch");
    return false;
  }
  if (!whole) start_run({Entry::kApply, step, begin, 0, begin, rate, true, {}, start}, controls, events);
  ++position_.step;
  return true;
}

// Throws Error with the text of `error`, which `run` caused, and the step and samples of `run`.
void Trainer::refuse(const BatchRun& run, const Error& error) const {
  if (run.samples == 0) fail_as(error.code(), "step ", run.step, ": ", error.what());
  // Of the error of another rank the own samples tell nothing.
  const bool is_of_samples = error.kind() == ErrorCode::kData;
  const std::string fault = is_of_samples ? training_->fault(run.first_sample, run.samples) : "";
  if (!fault.empty()) fail_as(error.code(), "step ", run.step, ": ", fault);
  fail_as(error.code(), "step ", run.step, ": ", error.what(), "; ",
          training_->describe(run.first_sample, run.samples));
}

void Trainer::start_run(BatchRun run, const TensorMap& inputs, TrainerEvents* events) {
  try {
    session_.start(run.entry, inputs, std::ssize(run.batches), run.is_last_round);
  } catch (const Error& error) {
    refuse(run, error);
  }
  runs_.push_back(std::move(run));
  // On the host it is already complete.
  if (session_.device().uses_host_memory() || options_.wait_for_steps) finish_run(events);
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
  for (const auto& [dtype, count] : session_.operations()) report_.operations[dtype] += count;
  const auto value = [&](const char* role, double otherwise) {
    return value_or(session_, run.entry, *outputs, role, otherwise);
  };
  for (size_t i = 0; i < run.batches.size(); ++i) {
    add_batch(run, run.batches[i], of_rank(session_, *outputs, i), events);
  }
  report_.grad_norm = value(roles::kGradNorm, 0);
  if (const double scale = value(roles::kLossScale, 0); scale != 0) report_.loss_scale = scale;
  if (run.ends_step) report_step(run, events);
}

void Trainer::note_once(const char* what, const std::string& text, TrainerEvents* events) {
  if (noted_.insert(what).second) events->on_note(text);
}

void Trainer::add_batch(const BatchRun& run, int64_t samples, const TensorMap& outputs, TrainerEvents* events) {
  if (!reader_->knows_counts()) note_once("samples", kOverSamples, events);
  LossMean batch;
  reader_->add(outputs, samples, &batch, &accuracy_);
  if (!batch.counts()) {
    note_once("empty batch",
              concat("step ", run.step, ": nothing counts ", training_->describe(run.first_sample, run.samples),
                     ", every label is ignored or has no weight: its loss and gradient are 0, as for all such batches"),
              events);
  }
  loss_.add(batch);
  report_.samples += samples;
  report_.tokens += samples * rows_of_sample_ * run.tokens_of_sample;
  for (const std::string& name : metric_outputs_) {
    const double value = value_or(session_, run.entry, outputs, name.c_str(), std::nan(""));
    metrics_[name].add(value, static_cast<double>(samples));
  }
}

void Trainer::report_step(const BatchRun& run, TrainerEvents* events) {
  StepReport report = std::exchange(report_, {});
  const LossMean loss = std::exchange(loss_, {});
  const Mean accuracy = std::exchange(accuracy_, {});
  report.loss = loss.counts() ? loss.value() : 0;
  if (accuracy.count != 0) report.accuracy = accuracy.value();
  for (const auto& [name, mean] : std::exchange(metrics_, {})) report.metrics[name] = mean.value();
  report.skipped = report.loss_scale && !std::isfinite(report.grad_norm);
  // A loss that overflows says nothing of the others.
  if (!report.skipped || std::isfinite(report.loss)) position_.loss.add(loss);
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
  if (!best && !last) return;
  const std::string& folder = options_.folder.empty() ? options_.shard_folder : options_.folder;
  if (source_epoch_ == position_.epoch) position_.place = training_->place();
  std::vector<std::string> paths;
  if (best && !folder.empty()) paths.push_back(folder + "/best.onnx");
  if (last && !folder.empty()) paths.push_back(folder + "/last.onnx");
  at_end ? checkpoints_.save_and_wait(position_, paths) : checkpoints_.save(position_, paths);
  if (const CheckpointBase* base = checkpoints_.base(); base && !options_.folder.empty()) {
    note_once("base",
              concat("checkpoints do not hold the frozen weights, ", format_bytes(base->bytes()), ", which stay in ",
                     base->path(), "; --checkpoint-base whole makes files that need no other"),
              events);
  }
  if (!checkpoints_.note().empty()) note_once("checkpoints", "checkpoints: " + checkpoints_.note(), events);
  if (options_.folder.empty()) return;
  for (const std::string& path : paths) events->on_checkpoint(path);
}

// The evaluation at the end is an additional one: it may find the best state, but the mean of the training loss
// continues and patience does not count it, so that a resumed training evaluates like one that never stopped.
bool Trainer::evaluate_now(int64_t epoch, bool at_end, TrainerEvents* events) {
  EvaluationReport report{};
  report.epoch = epoch;
  report.step = position_.step;
  report.train_loss = position_.loss.value();
  if (evaluation_) {
    EvaluationResult result =
        evaluate(&session_, evaluation_.get(), session_.topology().micro_batches(options_.accumulate));
    report.evaluation = std::move(result.metrics);
    report.tables = std::move(result.tables);
    for (const std::string& note : result.notes) note_once(note.c_str(), "evaluation: " + note, events);
  }
  evaluated_ = true;
  const auto metric = [&](const std::string& name) {
    const auto found = report.evaluation.find(name);
    return found == report.evaluation.end() ? report.train_loss : found->second;
  };
  const double value = metric(options_.best);
  const double sign = more_of_best_is_better() ? -1 : 1;
  report.best = std::isfinite(value) && (!position_.best || sign * value < sign * *position_.best);
  if (report.best) position_.best = value;
  const std::optional<double>& mark = position_.mark;
  const bool progresses = report.best && (!mark || sign * value < sign * *mark - options_.min_delta);
  if (progresses) position_.mark = value;
  if (!options_.stop_at.empty()) {
    const StopTarget target = parse_stop_target(options_.stop_at);
    reached_ = target.reached(metric(target.metric));
  }
  if (!at_end) {
    position_.stale = progresses ? 0 : position_.stale + 1;
    options_.schedule.observe(metric(roles::kLoss), &position_.schedule);
    position_.loss = {};
  }
  events->on_evaluation(report);
  return report.best;
}

// One rank's clock or user ends the training of all, after the same step. A checkpoint whose shards are all written is
// put into place.
std::optional<StopReason> Trainer::agree(std::optional<StopReason> reason) {
  constexpr uint32_t kWritten = 1 << 8;  // beside a reason
  const Topology& topology = session_.topology();
  std::vector<uint32_t> said = {(reason ? 1 + static_cast<uint32_t>(*reason) : 0) |
                                (checkpoints_.is_written() ? kWritten : 0)};
  if (topology.ranks() > 1) said = topology.collectives()->gather("the end of a step", said[0]);
  if (std::ranges::all_of(said, [&](uint32_t number) { return (number & kWritten) != 0; })) checkpoints_.commit();
  uint32_t agreed = 0;
  for (const uint32_t number : said) agreed = std::max(agreed, number & ~kWritten);
  return agreed == 0 ? std::nullopt : std::optional(static_cast<StopReason>(agreed - 1));
}

StopReason Trainer::run(TrainerEvents* events, const std::atomic<bool>& interrupt) {
  const auto start = Clock::now();
  if (position_.step == 0 && !options_.folder.empty()) {
    remove_file(options_.folder + "/best.onnx");  // of a run that this one overwrites
  }
  if (position_.step == 0) save(/*best=*/false, /*last=*/true, /*at_end=*/false, events);
  while (!finished()) {
    checkpoints_.check();
    const bool stepped = start_step(events), epoch_ended = this->epoch_ended();
    const bool due = options_.eval_every > 0 ? stepped && position_.step % options_.eval_every == 0 : epoch_ended;
    // Finishes the previous step, which is complete by now or nearly so. Before an evaluation and at the end of an
    // epoch, finishes all steps.
    finish_runs(epoch_ended || due ? position_.step : position_.step - 1, events);
    const int64_t epoch = position_.epoch + 1;
    if (epoch_ended) {
      position_.epoch += 1;
      position_.sample = 0;
      position_.place.clear();
    }
    bool best = due && evaluate_now(epoch, /*at_end=*/false, events);
    std::optional<StopReason> stop;
    if (options_.time_limit > 0 && seconds_since(start) >= options_.time_limit) stop = StopReason::kTimeLimit;
    if (due && options_.early_stop > 0 && position_.stale >= options_.early_stop) stop = StopReason::kEarlyStop;
    if (finished()) stop = StopReason::kFinished;
    if (due && reached_) stop = StopReason::kTarget;
    if (events->stop()) stop = StopReason::kStopped;
    if (interrupt) stop = StopReason::kInterrupted;
    stop = agree(stop);
    const bool keep = options_.checkpoint_every > 0 && stepped && position_.step % options_.checkpoint_every == 0;
    if (stop || keep) finish_runs(position_.step, events);
    if (stop && !due && stop != StopReason::kInterrupted && !position_.loss.parts.empty()) {
      best = evaluate_now(epoch, /*at_end=*/true, events);
    }
    save(best || (stop && never_evaluated()), epoch_ended || keep || stop, stop.has_value(), events);
    seconds_ = seconds_since(start);
    if (stop) return *stop;
  }
  checkpoints_.wait();
  return StopReason::kFinished;
}

// Whether the training goes on after a skipped step: a smaller scale may do. Not if it has been tried.
bool Trainer::may_skip(const StepReport& report) {
  constexpr int64_t kMostWithScale = 20;
  constexpr double kLeastScale = 0x1p-24;  // 65504 / kLeastScale, float16's limit times its inverse, is 10^12
  skipped_with_scale_ = *report.loss_scale == scale_of_skipped_ ? skipped_with_scale_ + 1 : 1;
  scale_of_skipped_ = *report.loss_scale;
  ++skipped_in_a_row_;
  ++skipped_steps_;
  return *report.loss_scale > kLeastScale && skipped_with_scale_ < kMostWithScale;
}

void Trainer::check_finite(const BatchRun& run, const StepReport& report) {
  if (std::isfinite(report.loss) && std::isfinite(report.grad_norm)) {
    skipped_in_a_row_ = skipped_with_scale_ = 0;
    return;
  }
  // Where the loss is finite the data are; else they may hold the cause.
  const std::string fault =
      report.skipped && std::isfinite(report.loss) ? "" : training_->fault(run.step_begin, report.samples);
  const std::string saved =
      options_.folder.empty() ? "" : concat("; ", options_.folder, "/last.onnx holds an earlier state");
  if (report.skipped && fault.empty()) {
    if (may_skip(report)) return;
    fail_as(ErrorCode::kLossScale, "step ", report.step,
            ": the gradients overflow whatever the loss scale: ", skipped_in_a_row_,
            " updates in a row are skipped, the last one with a scale of ", *report.loss_scale, " (loss ", report.loss,
            "); lower --lr, build with --precision bf16, or look at the data", saved);
  }
  fail_as(ErrorCode::kLossNotFinite, "the loss is ", report.loss, " at step ", report.step, " (gradient norm ",
          std::isnan(report.grad_norm) ? std::nan("") : report.grad_norm,  // without its sign
          ", learning rate ", report.learning_rate, ") ", training_->describe(run.step_begin, report.samples), "; ",
          fault.empty() ? "lower --lr, add --warmup or --clip, or find the node with --detect-anomaly" : fault, saved);
}

}  // namespace onnx_train
