#include "runtime/data/loading/text_stream.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <future>
#include <limits>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/hash.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/files/readers.h"
#include "runtime/data/files/tokens.h"
#include "runtime/data/loading/document_source.h"
#include "runtime/data/random.h"
#include "runtime/data/texts/document_inputs.h"
#include "runtime/data/texts/packed_rows.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace onnx_train {

using SharedWindow = std::shared_ptr<const Dataset>;

namespace {

constexpr uint64_t kFileOrder = 0x66696c6573;  // of the files of an epoch, beside that of samples

bool is_standard_input(const std::vector<std::string>& paths) { return paths[0] == "-"; }

// A mark for each token: 0 for the first one of a document, which none predicts.
Tensor marks_within_documents(const Tensor& tokens, int64_t end) {
  Tensor marks = Tensor::full(DType::kUint8, tokens.shape(), 1);
  const auto* from = tokens.data<uint32_t>();
  for (int64_t i = 1; i < tokens.size(); ++i) marks.data<uint8_t>()[i] = from[i - 1] == end ? 0 : 1;
  return marks;
}

}  // namespace

// Where a window begins.
struct WindowPlace {
  DocumentPlace documents;
  std::vector<int64_t> carried;     // tokens that were read before, and are in no window yet
  int64_t number = 0, samples = 0;  // windows before it in this epoch, and their samples
  std::string head = {};            // the hash of the first bytes of standard input
  int64_t head_bytes = 0;
};

namespace {

std::string to_json(const WindowPlace& place) {
  const nlohmann::ordered_json json = {{"window", place.number},
                                       {"samples", place.samples},
                                       {"file", place.documents.file},
                                       {"offset", place.documents.offset},
                                       {"lines", place.documents.lines},
                                       {"carried", place.carried},
                                       {"head", place.head},
                                       {"head bytes", place.head_bytes}};
  return json.dump();
}

WindowPlace parse_place(const std::string& text) {
  WindowPlace place;
  try {
    const auto json = nlohmann::json::parse(text);
    json.at("window").get_to(place.number);
    json.at("samples").get_to(place.samples);
    json.at("file").get_to(place.documents.file);
    json.at("offset").get_to(place.documents.offset);
    json.at("lines").get_to(place.documents.lines);
    json.at("carried").get_to(place.carried);
    json.at("head").get_to(place.head);
    json.at("head bytes").get_to(place.head_bytes);
  } catch (const nlohmann::json::exception&) {
    refuse_place();
  }
  const auto is_token = [](int64_t x) { return x >= 0 && x <= std::numeric_limits<uint32_t>::max(); };
  if (place.number < 0 || place.samples < 0 || place.head_bytes < 0 || !std::ranges::all_of(place.carried, is_token))
    refuse_place();
  return place;
}

std::string hash_of(const std::string& bytes) {
  Hash hash;
  hash.add(bytes);
  return hash.hex();
}

}  // namespace

// What all passes over a stream have in common.
struct TextStreamSettings {
  std::vector<std::string> paths;
  std::vector<InputSpec> inputs;
  ReadOptions options;
  int64_t samples;  // of a window
};

// One pass: windows, one after the other.
class StreamWindows {
 public:
  StreamWindows(const TextStreamSettings& settings, const std::vector<std::string>& paths)
      : settings_(settings),
        to_(token_inputs(settings.inputs)),
        block_(block_of(*to_.tokens, settings.options)),
        tokenizer_(tokenizer_of(settings.options)),
        source_(document_source(paths, to_.tokens->name, settings.options)) {}

  // Of the next window, but for its number.
  WindowPlace place() const { return {.documents = source_->place(), .carried = carried_}; }
  void seek(const WindowPlace& place) {
    if (std::ssize(place.carried) > block_) refuse_place();
    source_->seek(place.documents);
    carried_ = place.carried;
  }
  std::string head() const { return source_->head(); }

  // Null at the end. `notes`: of what the window's arrays say.
  SharedWindow next(DataNotes* notes = nullptr) {
    const bool is_blocks = settings_.options.packing.empty();
    for (;;) {
      DocumentBuffer buffer;
      if (!carried_.empty()) buffer.add(carried_, std::nullopt);
      const int64_t before = buffer.size();
      source_->read(before + settings_.samples * (block_ + 1), &buffer);
      if (buffer.size() == before) return nullptr;
      const DocumentTokens made = buffer.result();
      DocumentGroup group{"", {{settings_.paths[0], made.tokens, made.ends, made.answers}}};
      Packing packing = parse_packing(settings_.options.packing);
      if (is_blocks && made.answers.empty()) {
        cut_into_blocks(&group.shards[0]);
      } else if (is_blocks) {
        packing = Packing::kNone;  // conversations
      }
      DataArrays data;
      const PackedDocuments found = add_documents({group}, packing, tokenizer_ ? tokenizer_->padding() : 0,
                                                  settings_.inputs, settings_.options, &data);
      if (found.all_rows() == 0) continue;
      if (tokenizer_) remember_tokenizer(*tokenizer_, settings_.options, &data);
      if (notes) *notes = data.notes;
      return std::make_shared<const Dataset>(data, settings_.inputs);
    }
  }

 private:
  // Whole blocks of the tokens, whose rest begins the next window.
  void cut_into_blocks(DocumentShard* shard) {
    const int64_t labels = to_.labels ? 1 : 0, count = shard->tokens.size();
    const int64_t blocks = std::max<int64_t>(count - labels, 0) / block_, rest = blocks * block_;
    const auto* from = shard->tokens.data<uint32_t>();
    carried_.assign(from + rest, from + count);
    const std::optional<int64_t> end = settings_.options.document_end;
    if (labels && end) shard->answers = marks_within_documents(shard->tokens, *end);
    shard->ends = Tensor::ints(blocks > 0 ? std::vector<int64_t>{rest + labels} : std::vector<int64_t>());
  }

  const TextStreamSettings& settings_;
  const TokenInputs to_;
  const int64_t block_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<DocumentSource> source_;
  std::vector<int64_t> carried_;
};

struct TextStream::State {
  TextStreamSettings settings;
  std::unique_ptr<StreamWindows> once;  // of standard input, behind its first window
  SharedWindow first = nullptr;         // of standard input
};

class StreamBatches : public BatchSource {
 public:
  StreamBatches(std::shared_ptr<TextStream::State> state, int64_t batch_size, uint64_t seed, bool shuffle,
                bool drop_last)
      : state_(std::move(state)), batch_size_(batch_size), seed_(seed), shuffle_(shuffle), drop_last_(drop_last) {}
  ~StreamBatches() override {
    if (is_standard_input(state_->settings.paths)) leave_standard_input();
    wait();
  }

  void share_out(const Rounds& rounds) override {
    if (rounds.at_once > 1) throw UsageError("pipelines train on data sets, not on --stream");
    if (rounds.ranks > 1 && is_standard_input(state_->settings.paths))
      throw UsageError("standard input is one process's: several ranks stream files");
    rounds_ = rounds;
  }

  void start(int64_t epoch, int64_t skip) override { start_at(epoch, skip, ""); }

  void start_at(int64_t epoch, int64_t skip, const std::string& place) override {
    wait();
    rows_.clear();
    windows_in_use_.clear();
    batch_of_step_ = 0;
    epoch_ = epoch;
    std::optional<WindowPlace> from;
    if (!place.empty()) from = parse_place(place);
    if (from && from->samples > skip) refuse_place();
    if (is_standard_input(state_->settings.paths)) {
      if (!state_->once || epoch > 0)
        fail_as(ErrorCode::kData, "standard input has ended, and is read once: --epochs 1 takes what there is");
      windows_ = std::move(state_->once);
      if (from && !is_same_input(*from)) {
        note_ = "standard input is not the one that the run has read before: it is read from its start";
        from.reset();
        skip = 0;
      }
      head_bytes_ = std::ssize(windows_->head());  // of the first window, which any run of this input reads
      head_ = hash_of(windows_->head());
    } else {
      windows_ = std::make_unique<StreamWindows>(state_->settings, files_of(epoch));
    }
    number_ = from ? from->number : 0;
    given_ = taken_ = from ? from->samples : 0;
    if (state_->first && number_ == 0) {  // of standard input, which is read already
      ahead_ = std::async(std::launch::deferred, [first = state_->first] { return Window{first, {}}; });
    } else {
      if (from) windows_->seek(*from);
      read_ahead();
    }
    if (from && state_->first)
      note_ = concat("standard input: the first ", from->documents.offset,
                     " bytes are skipped, which the run has read before");
    while (given_ < skip) {
      if (rows_.empty() && !fill(1)) fail("cannot resume: the stream ends before the checkpoint's position");
      give(std::min(skip - given_, std::ssize(rows_)));
    }
  }

  std::string place() const override {
    if (windows_in_use_.empty()) return "";
    return to_json(windows_in_use_.front().place);
  }
  std::string note() const override { return note_; }

  int64_t next(TensorMap* batch) override {
    const std::vector<int64_t> sizes = next_round(batch);
    return sizes.empty() ? 0 : sizes[0];
  }

  std::vector<int64_t> next_round(TensorMap* batch) override {
    fill(rounds_.ranks * batch_size_);
    auto left = std::ssize(rows_);
    if (drop_last_) left -= left % batch_size_;
    const std::vector<int64_t> sizes = rounds_.sizes(batch_of_step_, left, batch_size_);
    if (sizes.empty()) return {};
    const size_t own = rounds_.own(sizes)[0];
    gather(static_cast<int64_t>(own) * batch_size_, sizes[own], batch);
    for (const int64_t size : sizes) give(size);
    batch_of_step_ = (batch_of_step_ + std::ssize(sizes)) % rounds_.per_step;
    return sizes;
  }

  std::string identity() const override {
    std::string text = "stream of";
    for (const std::string& path : state_->settings.paths) {
      std::error_code error;
      const auto bytes = std::filesystem::file_size(path, error);
      text += concat(" ", path, error ? std::string() : concat(" (", bytes, " bytes)"));
    }
    return text;
  }

 private:
  struct Row {
    SharedWindow window;
    int64_t sample;
  };
  struct Window {
    SharedWindow samples;  // null: the stream has ended
    WindowPlace place;
  };
  struct WindowInUse {
    WindowPlace place;
    int64_t end;  // samples of this epoch up to its last one
  };

  // Leaves out rows that have been given, and windows before that of the last one of them.
  void give(int64_t count) {
    rows_.erase(rows_.begin(), rows_.begin() + count);
    given_ += count;
    while (windows_in_use_.front().end < given_) windows_in_use_.pop_front();
  }

  // Whether standard input begins as the one of which a checkpoint says its place.
  bool is_same_input(const WindowPlace& place) const {
    const std::string head = windows_->head();
    const auto bytes = static_cast<size_t>(place.head_bytes);
    return head.size() >= bytes && hash_of(head.substr(0, bytes)) == place.head;
  }

  std::vector<std::string> files_of(int64_t epoch) const {
    const std::vector<std::string>& paths = state_->settings.paths;
    std::vector<std::string> files;
    const uint64_t seed = SplitMix64({seed_, kFileOrder}).next();
    for (const int64_t i : sample_order(std::ssize(paths), seed, epoch, shuffle_))
      files.push_back(paths[static_cast<size_t>(i)]);
    return files;
  }

  void wait() {
    if (ahead_.valid()) ahead_.wait();
  }
  void read_ahead() {
    ahead_ = std::async(std::launch::async, [this] {
      const WindowPlace place = windows_->place();
      return Window{windows_->next(), place};
    });
  }

  // Takes windows until there are `count` rows; false if the stream ends before.
  bool fill(int64_t count) {
    while (std::ssize(rows_) < count) {
      if (!ahead_.valid()) return false;
      Window next = ahead_.get();
      const SharedWindow window = next.samples;
      if (!window) return false;
      read_ahead();
      next.place.number = number_;
      next.place.samples = taken_;
      next.place.head = head_;
      next.place.head_bytes = head_bytes_;
      taken_ += window->num_samples();
      windows_in_use_.push_back({next.place, taken_});
      const uint64_t seed = SplitMix64({seed_, static_cast<uint64_t>(epoch_)}).next();
      for (const int64_t sample : sample_order(window->num_samples(), seed, number_++, shuffle_))
        rows_.push_back({window, sample});
    }
    return true;
  }

  // `count` rows from `first` on, which may be of several windows.
  void gather(int64_t first, int64_t count, TensorMap* batch) {
    batch->clear();
    for (int64_t begin = first; begin < first + count;) {
      const SharedWindow window = rows_[static_cast<size_t>(begin)].window;
      std::vector<int64_t> samples;
      for (; begin < first + count && rows_[static_cast<size_t>(begin)].window == window; ++begin)
        samples.push_back(rows_[static_cast<size_t>(begin)].sample);
      TensorMap part;
      window->gather(samples.data(), std::ssize(samples), &part);
      for (auto& [name, rows] : part) {
        const auto [before, is_first] = batch->emplace(name, rows);
        if (!is_first) before->second = joined(before->second, rows);
      }
    }
  }

  static Tensor joined(const Tensor& a, const Tensor& b) {
    Shape shape = a.shape();
    shape[0] += b.shape()[0];
    Tensor both(a.dtype(), shape);
    std::memcpy(both.data(), a.data(), a.bytes());
    std::memcpy(both.data<char>() + a.bytes(), b.data(), b.bytes());
    return both;
  }

  const std::shared_ptr<TextStream::State> state_;
  const int64_t batch_size_;
  const uint64_t seed_;
  const bool shuffle_, drop_last_;
  Rounds rounds_;
  int64_t batch_of_step_ = 0, epoch_ = 0, number_ = 0;  // of the next window
  int64_t given_ = 0, taken_ = 0;                       // samples of the epoch: given, and of all windows taken
  std::string head_, note_;
  int64_t head_bytes_ = 0;
  std::deque<Row> rows_;
  std::deque<WindowInUse> windows_in_use_;  // from that of the sample given last
  std::unique_ptr<StreamWindows> windows_;
  std::future<Window> ahead_;
};

TextStream::TextStream(const std::vector<std::string>& paths, const Model& model, const EntryName& entry,
                       const ReadOptions& options, int64_t window)
    : state_(std::make_shared<State>()) {
  const std::vector<InputSpec> inputs = entry_inputs(model, entry);
  const TokenInputs to = token_inputs(inputs);
  if (!to.tokens) fail_as(ErrorCode::kData, paths[0], " holds texts, but the model has no input int64[batch, tokens]");
  state_->settings = {paths, inputs, options, window};
  if (options.document_end && to.labels && !options.ignored_label)
    throw UsageError(concat("--document-end: the loss reads '", to.labels->name,
                            "' and ignores none of them; build it with ignore_index"));
  auto windows = std::make_unique<StreamWindows>(state_->settings, paths);
  first_ = windows->next(&notes_);
  const std::string name = is_standard_input(paths) ? "standard input" : names_of(paths);
  if (!first_) fail_as(ErrorCode::kTokenBlocks, name, " has too few tokens for one sample");
  notes_.insert(notes_.begin(), concat(name, ": read while it is trained on, ", window,
                                       " samples at a time; the first ", first_->num_samples(), " are checked"));
  if (!is_standard_input(paths)) return;
  state_->once = std::move(windows);
  state_->first = first_;
}

std::unique_ptr<BatchSource> TextStream::batches(int64_t batch_size, uint64_t seed, bool shuffle,
                                                 bool drop_last) const {
  const int64_t fixed = first_->fixed_batch();
  if (fixed > 0 && fixed != batch_size) {
    fail_as(ErrorCode::kBatchSize, "the model's batch size is fixed at ", fixed, ", not ", batch_size,
            "; build it with --batch dynamic");
  }
  return std::make_unique<StreamBatches>(state_, batch_size, seed, shuffle, drop_last || fixed > 0);
}

}  // namespace onnx_train
