#include "kernels/choices/fastest.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include "kernels/choices/cache.h"
#include "kernels/choices/choices.h"
#include "kernels/device.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// A form's time is its least of some rounds, and of one before them: nine, or so many as the track's time allows, at
// least two.
constexpr double kMostRounds = 9, kLeastRounds = 2;
constexpr double kSlow = 1.25;  // a form that takes so many times the best's time in the round before them is left out

// A form with a result that is further from the rule's, relative to the largest of all, is not chosen. Numbers of 16
// bits and products in TF32 stay below it; an engine of a library that is wrong for a shape does not: on an H200, one
// of cuDNN 9.19 for the gradient of three-dimensional filters.
constexpr double kMostDifference = 0.03;

// A form that needs more memory than the rule has a workspace of at most the size of the node's operands, or of so many
// bytes.
constexpr size_t kSmallWorkspace = size_t{32} << 20;

constexpr int kSpoilt = 0x4b;  // in each byte: 13 million as a float

// ---- ONNX_TRAIN_TIMED_CHOICES

struct Setting {
  std::optional<double> seconds = {};  // the track's, if there are none
  std::optional<size_t> form = {};     // of each node
};

Setting setting() {
  const char* const value = std::getenv("ONNX_TRAIN_TIMED_CHOICES");
  const std::string text = value ? value : "";
  constexpr std::string_view kForm = "form=";
  if (text.empty() || text == "on") return {};
  if (text == "off") return {0};
  char* end = nullptr;
  if (text.starts_with(kForm)) {
    const size_t form = std::strtoul(text.c_str() + kForm.size(), &end, 10);
    if (*end == '\0') return {0, form};
  } else {
    const double seconds = std::strtod(text.c_str(), &end);
    if (*end == '\0' && seconds >= 0) return {seconds};
  }
  fail("ONNX_TRAIN_TIMED_CHOICES=", text, ": give seconds, off, or form=2");
}

// ---- What is kept

std::string key_of(const Track& track, const Computation& computation, const std::vector<Form>& forms) {
  std::string key = concat(track.hardware, " ", computation.library, "\n", computation.text);
  for (const Form& form : forms) key += form.name + "\n";
  return key;
}

// The names of chosen forms: those of this process, and those on disk.
class Chosen {
 public:
  // Empty if there is none.
  const std::string& find(const CacheEntry& entry) {
    std::string& name = names_[entry.key];
    if (name.empty()) name = first_line(read_cached(entry).value_or(""));
    return name;
  }
  // Returns what is kept: the choice of another process if that was earlier. The file also holds the times and the key,
  // for readers. Returns "" and keeps nothing if `must_keep` and no file can be written.
  std::string keep(const CacheEntry& entry, const std::string& name, const std::string& times, bool must_keep) {
    const std::optional<std::string> kept = keep_cached(entry, concat(name, "\n", times, entry.key));
    if (!kept && must_keep) return "";
    return names_[entry.key] = kept ? first_line(*kept) : name;
  }

 private:
  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  std::map<std::string, std::string> names_;
};

// ---- Timing

// Memory for one run of a node; inputs that are floats are random, since arithmetic on zeros is faster.
class Operands {
 public:
  // Of each operand the first `bytes` are used.
  Operands(const Track& track, const Node& node, size_t bytes, size_t workspace, Stream* stream)
      : track_(track), bytes_(bytes), stream_(stream) {
    for (const Value* input : node.inputs()) inputs_.push_back(input ? add(bytes_of(input)) : nullptr);
    for (const Value* output : node.outputs()) outputs_.push_back(output ? add(bytes_of(output)) : nullptr);
    workspace_ = add(workspace);
    fault_ = static_cast<Fault*>(add(sizeof(Fault)));
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i]) continue;
      const Value& input = *node.inputs()[i];
      track.fill_with_noise(launch(), input.dtype(), used_elements(input), static_cast<uint32_t>(i) << 28,
                            const_cast<void*>(inputs_[i]));
    }
  }
  ~Operands() {
    for (const auto& [data, bytes] : memory_) track_.free ? track_.free(data, bytes) : track_.device->free(data);
  }
  Operands(const Operands&) = delete;

  // Of the node's inputs, and of its outputs `copies` times.
  static size_t bytes(const Node& node, size_t copies = 1) {
    size_t sum = 0;
    for (const Value* input : node.inputs()) sum += bytes_of(input);
    for (const Value* output : node.outputs()) sum += copies * bytes_of(output);
    return sum;
  }

  // Makes what the outputs hold the results that others are compared with.
  void keep_results(const Node& node) {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const size_t bytes = std::min(bytes_of(node.outputs()[i]), bytes_);
      results_.push_back(add(bytes));
      if (bytes > 0) stream_->copy({results_[i], outputs_[i], bytes});
    }
  }
  // So that what a form does not write is far from the results, and finite, since some products add to what is there.
  void spoil_outputs(const Node& node) {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i]) track_.set_bytes(launch(), outputs_[i], kSpoilt, std::min(bytes_of(node.outputs()[i]), bytes_));
    }
  }
  // Whether the outputs hold about the results that were kept.
  bool agree(const Node& node) const {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Value* const output = node.outputs()[i];
      if (!output) continue;
      const double difference =
          track_.relative_difference(launch(), output->dtype(), used_elements(*output), outputs_[i], results_[i]);
      if (!(difference <= kMostDifference)) return false;
    }
    return true;
  }

  Launch launch() const { return {inputs_.data(), outputs_.data(), workspace_, stream_, fault_, 1}; }

 private:
  // 0 if the value is absent.
  static size_t bytes_of(const Value* value) {
    return value ? static_cast<size_t>(num_elements(value->type().shape())) * size_of(value->dtype()) : 0;
  }

  int64_t used_elements(const Value& value) const {
    return static_cast<int64_t>(std::min(bytes_of(&value), bytes_) / size_of(value.dtype()));
  }

  void* add(size_t bytes) {
    bytes = std::max<size_t>(bytes, 1);
    memory_.reserve(memory_.size() + 1);  // so that no memory is lost
    return memory_.emplace_back(track_.allocate ? track_.allocate(bytes) : track_.device->allocate(bytes), bytes).first;
  }

  const Track& track_;
  const size_t bytes_;
  Stream* const stream_;
  std::vector<std::pair<void*, size_t>> memory_;  // and bytes
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_, results_;
  void* workspace_ = nullptr;
  Fault* fault_ = nullptr;
};

// A form that takes part.
struct Candidate {
  size_t form;
  Prepared prepared;
  double time = 0;  // milliseconds
};

// Measures each candidate. Candidates take turns, so that a change of the clock rate affects all of them.
void time(const Track& track, const NodeSpec& spec, size_t bytes, const SetInputs& set_inputs,
          std::vector<Candidate>* candidates) {
  size_t workspace = 0;
  for (const Candidate& candidate : *candidates) workspace = std::max(workspace, candidate.prepared.workspace);
  const std::unique_ptr<Stream> stream = track.device->make_stream();
  Operands operands(track, spec.node(), bytes, workspace, stream.get());
  const Launch launch = operands.launch();
  const auto run = [&](size_t rounds, const std::vector<Candidate*>& some) {
    const std::vector<double> ends =
        stream->time(rounds * some.size(), [&](size_t i) { some[i % some.size()]->prepared.run(launch); });
    for (size_t i = 0; i < ends.size(); ++i) {
      double& of_form = some[i % some.size()]->time;
      const double time = ends[i] - (i == 0 ? 0 : ends[i - 1]);
      of_form = of_form == 0 ? time : std::min(of_form, time);
    }
  };
  if (set_inputs) set_inputs(launch);
  // The first run loads what a form needs. It may find that the library does not run what it has promised to run, or
  // that it computes something else.
  std::erase_if(*candidates, [&](const Candidate& candidate) {
    try {
      operands.spoil_outputs(spec.node());
      candidate.prepared.run(launch);
      if (candidate.form == 0) operands.keep_results(spec.node());
      return !operands.agree(spec.node());
    } catch (const Error&) {
      if (candidate.form == 0) throw;
      return true;
    }
  });
  if (candidates->size() < 2) return;
  std::vector<Candidate*> some;
  for (Candidate& candidate : *candidates) some.push_back(&candidate);
  run(1, some);
  const double best =
      (*std::min_element(some.begin(), some.end(), [](auto* a, auto* b) { return a->time < b->time; }))->time;
  std::erase_if(some,
                [&](const Candidate* candidate) { return candidate->form > 0 && candidate->time > kSlow * best; });
  if (some.size() > 1) run(static_cast<size_t>(std::clamp(track.milliseconds / best, kLeastRounds, kMostRounds)), some);
}

struct Choice {
  size_t form = 0;
  bool is_final = true;    // false: seconds were over
  bool is_kept = true;     // false: there was too little memory, of which there may be more next time
  std::string times = {};  // a line for each form that was timed
};

Choice choose(const Track& track, const NodeSpec& spec, size_t bytes, const std::vector<Form>& forms,
              const SetInputs& set_inputs, const std::function<bool()>& is_over) {
  const size_t most = track.device->available_bytes() / 2, operands = Operands::bytes(spec.node()),
               held = Operands::bytes(spec.node(), 2);
  Choice choice;
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < forms.size() && choice.is_final; ++i) {
    if (held > most) return {.is_kept = false};
    choice.is_final = !is_over();
    const auto& prepare = forms[i].sample ? forms[i].sample : forms[i].prepare;
    std::optional<Prepared> prepared = choice.is_final ? prepare() : std::nullopt;
    if (!prepared) continue;
    const size_t needed = candidates.empty() ? prepared->workspace : candidates[0].prepared.workspace;
    if (prepared->workspace > std::max({needed, operands, kSmallWorkspace})) continue;
    const bool has_room = prepared->workspace <= most - held;
    if (i == 0 && !has_room) return {.is_kept = false};
    choice.is_kept = choice.is_kept && has_room;
    if (has_room) candidates.push_back({i, std::move(*prepared)});
  }
  if (candidates.size() < 2) return choice;
  choice.is_kept = true;
  time(track, spec, bytes, set_inputs, &candidates);
  if (candidates.size() < 2) return choice;
  const auto best = std::min_element(candidates.begin(), candidates.end(),
                                     [](const Candidate& a, const Candidate& b) { return a.time < b.time; });
  for (const Candidate& candidate : candidates)
    choice.times += concat(candidate.time, " ms ", forms[candidate.form].name, "\n");
  if (best->time < (1 - kGain) * candidates[0].time) choice.form = best->form;
  return choice;
}

}  // namespace

bool has_choices() {
  const Setting given = setting();
  return given.form || given.seconds.value_or(1) > 0;
}

Prepared fastest(const Track& track, const NodeSpec& spec, const Computation& computation,
                 const std::vector<Form>& forms, const SetInputs& set_inputs) {
  const auto made = [&](size_t i, const std::string& note = "") -> std::optional<Prepared> {
    std::optional<Prepared> prepared = forms[i].prepare();
    if (prepared) prepared->form = forms[i].name + note;
    return prepared;
  };
  const Setting given = setting();
  const double most_seconds = given.seconds.value_or(track.most_seconds);
  for (size_t i = std::min(given.form.value_or(0), forms.size() - 1); i > 0; --i) {
    if (auto prepared = made(i)) return *prepared;
  }
  if (forms.size() == 1 || given.form) return *made(0);
  // The form of this name, and its name in the checkpoint.
  Choices* const choices = spec.choices();
  const std::string kept_key = concat(computation.library, "\n", computation.text);
  const auto named = [&](const std::string& name, const std::string& note = "") -> std::optional<Prepared> {
    const auto form = std::find_if(forms.begin(), forms.end(), [&](const Form& f) { return f.name == name; });
    std::optional<Prepared> prepared;
    if (form != forms.end()) prepared = made(static_cast<size_t>(form - forms.begin()), note);
    if (prepared && choices) choices->keep(kept_key, name);
    return prepared;
  };
  if (choices) {
    const std::optional<std::string> kept = choices->find(kept_key);
    if (auto prepared = kept ? named(*kept) : std::nullopt) return *prepared;
  }
  const auto rule = [&] { return *named(forms[0].name); };
  if (most_seconds == 0 || (track.must_keep && !choices)) return rule();
  // One thread at a time, so that none is in the time of another.
  static std::mutex mutex;
  static auto& chosen = *new Chosen;
  static auto& spent = *new std::map<std::string, double>;  // seconds, by backend
  const std::lock_guard lock(mutex);
  const CacheEntry entry = {track.backend, "choice", key_of(track, computation, forms)};
  // A choice that was cut short is kept with the limit, too.
  const CacheEntry hasty_entry = {track.backend, "choice", concat(entry.key, "within ", most_seconds, " s\n")};
  const std::string hasty = concat(", chosen when ", most_seconds, " s of choices were over");
  for (const bool is_final : {true, false}) {
    if (auto prepared = named(chosen.find(is_final ? entry : hasty_entry), is_final ? "" : hasty)) return *prepared;
  }
  if (choices && choices->what_is_new() == Choices::New::kDrafted) return *made(0);
  if (choices && choices->what_is_new() == Choices::New::kByRule) return rule();
  if (track.must_keep && !has_cache(track.backend)) return rule();
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  double& all_seconds = spent[track.backend];
  const Choice choice = choose(track, spec, computation.bytes, forms, set_inputs,
                               [&] { return all_seconds + seconds() >= most_seconds; });
  std::string name = forms[choice.form].name;
  if (choice.is_kept) name = chosen.keep(choice.is_final ? entry : hasty_entry, name, choice.times, track.must_keep);
  // Another process may have had the time that this one lacked.
  if (const std::string& other = chosen.find(entry); !other.empty()) name = other;
  all_seconds += seconds();
  if (choices && !(choice.is_final && choice.times.empty())) choices->add_timed(seconds(), choice.is_final);
  if (auto prepared = named(name, choice.is_final ? "" : hasty)) return *prepared;
  return rule();
}

}  // namespace onnx_train
