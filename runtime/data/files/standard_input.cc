// --data -: .npz archives, one after the other, as a program writes them into a pipe. They are read to their end, since
// batches are drawn from all of them; a process reads its standard input once and keeps the arrays.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>

#include "onnx_passes/io/file.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "platform/terminal.h"
#include "runtime/data/files/npy.h"
#include "runtime/data/files/readers.h"
#include "runtime/data/files/zip.h"

namespace onnx_train {
namespace {

constexpr std::string_view kEndRecord = "PK\5\6", kDirectory = "PK\1\2";
constexpr size_t kEndBytes = 22;  // of an end record without a comment

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// The size of the archive at the start of `bytes`, which comes after `before` others; 0 if it is not all there. An end
// record is one where the directory is where it says: offsets count from the start of the archive or, if it was
// appended to a file, from that of the file. `from` skips what was searched before.
size_t archive_size(std::string_view bytes, uint64_t before, size_t* from) {
  for (;;) {
    const size_t end = bytes.find(kEndRecord, *from);
    if (end == std::string_view::npos || end + kEndBytes > bytes.size()) {
      *from = end == std::string_view::npos ? std::max(bytes.size(), kEndRecord.size()) - kEndRecord.size() : end;
      return 0;
    }
    const uint64_t size = little_endian(bytes.substr(end + 12, 4)), offset = little_endian(bytes.substr(end + 16, 4));
    const bool is_directory = size <= end && (size == 0 || bytes.substr(end - size).starts_with(kDirectory));
    if (is_directory && (offset + size == end || offset + size == before + end)) return end + kEndBytes;
    *from = end + 1;
  }
}

// One array of all archives: their rows after each other.
struct Joined {
  DType dtype;
  Shape shape;
  std::shared_ptr<std::vector<char>> bytes = std::make_shared<std::vector<char>>();
};

class Records {
 public:
  // The next bytes of the input.
  void add(const char* data, size_t size) {
    bytes_.append(data, size);
    size_t begin = 0;
    while (begin < bytes_.size()) {
      const std::string_view rest = std::string_view(bytes_).substr(begin);
      constexpr size_t kMagic = 4;
      if (rest.size() >= kMagic && !rest.starts_with("PK\3\4") && !rest.starts_with(kEndRecord)) {
        fail_as(ErrorCode::kFile, name(), " does not begin as an .npz archive: write each with ",
                "numpy.savez(sys.stdout.buffer, x=..., labels=...)");
      }
      const size_t size_of_record = archive_size(rest, before_ + begin, &searched_);
      if (size_of_record == 0) break;
      join(rest.substr(0, size_of_record));
      begin += size_of_record;
      searched_ = 0;
      ++count_;
    }
    bytes_.erase(0, begin);
    before_ += begin;
  }

  TensorMap arrays() const {
    if (!bytes_.empty()) {
      fail_as(ErrorCode::kFile, name(), " is cut off: the input ends after ", bytes_.size(), " bytes of it");
    }
    if (count_ == 0) fail_as(ErrorCode::kFile, "standard input is empty: there is no .npz archive to read");
    TensorMap arrays;
    for (const auto& [key, joined] : joined_)
      arrays[key] = Tensor(joined.dtype, joined.shape, joined.bytes->data(), joined.bytes);
    return arrays;
  }

 private:
  std::string name() const { return concat("standard input, record ", count_ + 1); }

  // In a file of memory, so that the reader of archives is the one for files.
  std::shared_ptr<const MappedFile> mapped(std::string_view archive) const {
    File file = platform::memory_file("record");
    if (!file.is_open() || !file.write(archive.data(), archive.size())) {
      fail_as(ErrorCode::kFile, name(), " cannot be kept in memory: ", std::strerror(errno));
    }
    return MappedFile::map(file, name());
  }

  void join(std::string_view record) {
    const ZipArchive archive(mapped(record));
    constexpr std::string_view kNpy = ".npy";
    size_t arrays = 0;
    for (const ZipEntry& entry : archive.entries()) {
      if (!entry.name.ends_with(kNpy)) continue;
      const std::string key = entry.name.substr(0, entry.name.size() - kNpy.size());
      const ZipData data = archive.read(entry);
      join(key, parse_npy(data.data, data.size, data.owner, concat(name(), ": '", key, "'")));
      ++arrays;
    }
    if (arrays == 0) fail_as(ErrorCode::kFile, name(), " holds no arrays");
    if (arrays != joined_.size()) {
      fail_as(ErrorCode::kFile, name(), " has ", arrays, " arrays, the records before ", joined_.size());
    }
  }

  void join(const std::string& key, const Tensor& rows) {
    if (count_ == 0) joined_[key] = {rows.dtype(), rows.shape()};
    const auto found = joined_.find(key);
    if (found == joined_.end()) {
      fail_as(ErrorCode::kFile, name(), " has an array '", key, "', which the records before have not");
    }
    Joined& all = found->second;
    const auto row_of = [](const Shape& shape) { return Shape(shape.begin() + (shape.empty() ? 0 : 1), shape.end()); };
    if (rows.dtype() != all.dtype || rows.shape().size() != all.shape.size() ||
        row_of(rows.shape()) != row_of(all.shape)) {
      fail_as(ErrorCode::kFile, name(), ": '", key, "' is ", onnx_train::name(rows.dtype()), to_string(rows.shape()),
              "; in the records before it is ", onnx_train::name(all.dtype), to_string(all.shape));
    }
    if (count_ > 0 && all.shape.empty()) return;  // a scalar is that of the first
    if (count_ > 0) all.shape[0] += rows.shape()[0];
    const auto* from = static_cast<const char*>(rows.data());
    all.bytes->insert(all.bytes->end(), from, from + rows.bytes());
  }

  std::string bytes_;    // that are no whole record yet
  uint64_t before_ = 0;  // bytes of whole records
  size_t searched_ = 0;  // of them
  int64_t count_ = 0;    // records
  std::map<std::string, Joined> joined_;
};

// The first bytes, which are looked at before somebody reads them.
std::string& looked_at() {
  static std::string bytes;
  return bytes;
}

std::atomic<bool>& is_left() {
  static std::atomic<bool> left = false;
  return left;
}

// 0 at the end, and once nobody wants more.
size_t read_bytes(char* to, size_t size) {
  constexpr std::chrono::milliseconds kLook{100};
  while (!is_left()) {
    const int ready = platform::wait_for_input(kLook);
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const std::ptrdiff_t count = platform::read_input(to, size);
    if (count >= 0) return static_cast<size_t>(count);
    if (errno != EINTR) fail_as(ErrorCode::kFile, "cannot read standard input: ", std::strerror(errno));
  }
  return 0;
}

TensorMap read_records() {
  if (platform::is_terminal(platform::kStandardInput)) {
    fail_as(ErrorCode::kFile, "--data - reads .npz archives from standard input, which is a terminal here");
  }
  Records records;
  std::vector<char> buffer(size_t{1} << 20);
  for (;;) {
    const size_t count = read_standard_input(buffer.data(), buffer.size());
    if (count == 0) return records.arrays();
    records.add(buffer.data(), count);
  }
}

}  // namespace

bool holds_archives() {
  // Asked once: what somebody has read is not there any more.
  static const bool answer = [] {
    constexpr size_t kMagic = 4;
    std::string& bytes = looked_at();
    while (bytes.size() < kMagic) {
      char more[kMagic];
      const size_t count = read_bytes(more, kMagic - bytes.size());
      if (count == 0) break;
      bytes.append(more, count);
    }
    return bytes.empty() || bytes == "PK\3\4" || bytes == kEndRecord;
  }();
  return answer;
}

size_t read_standard_input(char* to, size_t size) {
  std::string& first = looked_at();
  if (first.empty()) return read_bytes(to, size);
  const size_t count = std::min(size, first.size());
  std::memcpy(to, first.data(), count);
  first.erase(0, count);
  return count;
}

void leave_standard_input() { is_left() = true; }

DataArrays open_standard_input() {
  static std::mutex mutex;
  static std::optional<TensorMap> arrays;
  const std::lock_guard lock(mutex);
  if (!arrays) arrays = read_records();
  return arrays_of(*arrays);
}

}  // namespace onnx_train
