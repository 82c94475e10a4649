#include "runtime/data/images/damaged.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>
#include <system_error>

#include "kernels/host.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/images/decode.h"
#include "runtime/data/images/store.h"

namespace onnx_train {
namespace {

// About a second of decoding on one core.
constexpr uintmax_t kFewBytes = uintmax_t{32} << 20;

constexpr int kMostThreads = 8;  // a picture may take hundreds of megabytes

// "" for a sample that can be read.
std::string fault_of(const PictureFiles& files, size_t sample) {
  try {
    const std::string path = files.folder + files.files[sample];
    const Picture picture = decode_picture(path);
    if (!files.boxes && files.masks.empty()) return "";
    const Picture mask = read_mask_of(files, sample);
    if (mask.height == picture.height && mask.width == picture.width) return "";
    return concat(
        files.boxes ? concat(files.boxes->path, ": images[", sample, "]") : files.folder + files.masks[sample], " has ",
        mask.width, " x ", mask.height, " pixels, ", path, " ", picture.width, " x ", picture.height);
  } catch (const std::exception& error) {  // of the file, or of memory
    return error.what();
  }
}

std::vector<std::string> faults_of(const PictureFiles& files, PictureFaults* known) {
  std::vector<std::string> faults(files.files.size());
  std::vector<size_t> unread;
  for (size_t i = 0; i < faults.size(); ++i) {
    const auto found = known->find(files.folder + files.files[i]);
    if (found == known->end()) {
      unread.push_back(i);
    } else {
      faults[i] = found->second;
    }
  }
  std::atomic<size_t> next = 0;
  const auto decode = [&] {
    for (size_t i = 0; (i = next++) < unread.size();) faults[unread[i]] = fault_of(files, unread[i]);
  };
  {
    std::vector<std::future<void>> others;  // wait for their threads when they are destroyed
    for (int i = 1; i < std::min(num_threads(), kMostThreads); ++i) {
      try {
        others.push_back(std::async(std::launch::async, decode));
      } catch (const std::system_error&) {  // no thread to be had
        break;
      }
    }
    decode();
  }
  for (const size_t sample : unread) (*known)[files.folder + files.files[sample]] = faults[sample];
  return faults;
}

template <typename T>
void keep(const std::vector<size_t>& samples, std::vector<T>* values) {
  if (values->empty()) return;
  std::vector<T> kept;
  for (const size_t sample : samples) kept.push_back(std::move((*values)[sample]));
  *values = std::move(kept);
}

}  // namespace

bool are_few_bytes(const PictureFiles& files) {
  uintmax_t bytes = 0;
  for (const auto* names : {&files.files, &files.masks}) {
    for (const std::string& name : *names) {
      std::error_code error;
      const uintmax_t size = std::filesystem::file_size(files.folder + name, error);
      if (!error) bytes += size;
      if (bytes > kFewBytes) return false;
    }
  }
  return true;
}

std::shared_ptr<const PictureFiles> readable_pictures(std::shared_ptr<const PictureFiles> files,
                                                      const std::string& on_bad, PictureFaults* known) {
  const bool skips = on_bad == "skip";
  if (!skips && !are_few_bytes(*files)) return files;
  const std::vector<std::string> faults = faults_of(*files, known);
  std::vector<size_t> readable;
  const std::string* first = nullptr;
  for (size_t i = 0; i < faults.size(); ++i) {
    if (faults[i].empty()) readable.push_back(i);
    if (!faults[i].empty() && !first) first = &faults[i];
  }
  if (!first) return files;
  const size_t bad = faults.size() - readable.size();
  const std::string all = concat("; ", bad, " of ", faults.size(), " pictures cannot be read");
  if (!skips || readable.empty()) fail_as(ErrorCode::kPicture, *first, bad > 1 ? all : "", kBadPictureHint);
  auto kept = std::make_shared<PictureFiles>(*files);
  keep(readable, &kept->files);
  keep(readable, &kept->masks);
  keep(readable, &kept->labels);
  keep(readable, &kept->targets);
  if (files->boxes) {
    auto boxes = std::make_shared<BoxFile>(*files->boxes);
    keep(readable, &boxes->boxes);
    keep(readable, &boxes->sizes);
    kept->boxes = std::move(boxes);
  }
  kept->left_out = static_cast<int64_t>(bad);
  kept->notes.push_back(
      concat(bad == 1 ? "a picture is left out: " : concat(bad, " pictures are left out, the first: "), *first));
  return kept;
}

}  // namespace onnx_train
