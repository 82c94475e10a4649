#include "runtime/data/files/zip.h"

#include <algorithm>
#include <cstring>

#include <zlib.h>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50, kDirectoryEntry = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50;
constexpr size_t kLocalSize = 30, kEntrySize = 46, kEndSize = 22, kLocatorSize = 20, kEnd64Size = 56;
constexpr uint64_t kUse64 = 0xffffffff;  // a 32-bit field whose value is in the ZIP64 extra field
constexpr int kStored = 0, kDeflated = 8;

[[noreturn]] void damaged(const MappedFile& file) {
  fail_as(ErrorCode::kDataDamaged, file.path(), " is cut off or no .npz archive");
}

// `size` bytes at `offset` of the file; an Error when they are not all there.
const unsigned char* at(const MappedFile& file, uint64_t offset, uint64_t size) {
  if (offset > file.size() || size > file.size() - offset) damaged(file);
  return file.data() + offset;
}

// Little-endian numbers.
uint64_t get(const unsigned char* p, int bytes) {
  uint64_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | p[i];
  return value;
}

void put(std::string* out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

// Replaces those of `fields` that say kUse64 by the values of the ZIP64 extra field, which come in the same order.
void read_zip64(const MappedFile& file, const unsigned char* extra, size_t size,
                std::initializer_list<uint64_t*> fields) {
  while (size >= 4) {
    const uint64_t id = get(extra, 2), length = get(extra + 2, 2);
    if (length > size - 4) damaged(file);
    if (id == 1) {
      const unsigned char* p = extra + 4;
      for (uint64_t* field : fields) {
        if (*field != kUse64) continue;
        if (p + 8 > extra + 4 + length) damaged(file);
        *field = get(p, 8);
        p += 8;
      }
      return;
    }
    extra += 4 + length;
    size -= 4 + length;
  }
}

// Offset of the end record, which is the last thing in the file but for a comment of up to 64 KiB.
uint64_t find_end(const MappedFile& file) {
  if (file.size() < kEndSize) damaged(file);
  const uint64_t last = file.size() - kEndSize, first = last > 0xffff ? last - 0xffff : 0;
  for (uint64_t offset = last + 1; offset-- > first;) {
    if (get(file.data() + offset, 4) == kEnd) return offset;
  }
  damaged(file);
}

}  // namespace

ZipArchive::ZipArchive(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {
  const uint64_t end = find_end(*file_);
  const unsigned char* record = at(*file_, end, kEndSize);
  uint64_t count = get(record + 10, 2), offset = get(record + 16, 4), shift = 0;
  if (end >= kLocatorSize && get(file_->data() + end - kLocatorSize, 4) == kEnd64Locator) {
    const unsigned char* record64 = at(*file_, get(file_->data() + end - kLocatorSize + 8, 8), kEnd64Size);
    if (get(record64, 4) != kEnd64) damaged(*file_);
    count = get(record64 + 32, 8);
    offset = get(record64 + 48, 8);
  } else if (const uint64_t size = get(record + 12, 4); size <= end && size + offset != end) {
    // Offsets may count from elsewhere: zipfile counts from the start of a file to which it appends an archive.
    shift = end - size - offset;  // modulo 2^64
    offset = end - size;
  }
  parse_directory(offset, count, shift);
}

void ZipArchive::parse_directory(uint64_t offset, uint64_t count, uint64_t shift) {
  if (count > file_->size() / kEntrySize) damaged(*file_);
  for (uint64_t i = 0; i < count; ++i) {
    const unsigned char* p = at(*file_, offset, kEntrySize);
    if (get(p, 4) != kDirectoryEntry) damaged(*file_);
    const uint64_t name_size = get(p + 28, 2), extra_size = get(p + 30, 2), comment_size = get(p + 32, 2);
    const unsigned char* name = at(*file_, offset + kEntrySize, name_size + extra_size + comment_size);
    ZipEntry entry;
    entry.name.assign(reinterpret_cast<const char*>(name), name_size);
    const uint64_t flags = get(p + 8, 2), method = get(p + 10, 2);
    if (flags & 1) fail_as(ErrorCode::kFile, file_->path(), ": '", entry.name, "' is encrypted");
    if (method != kStored && method != kDeflated) {
      fail_as(ErrorCode::kFile, file_->path(), ": '", entry.name, "' is compressed by method ", method,
              "; use numpy.savez_compressed");
    }
    entry.deflated = method == kDeflated;
    entry.crc = static_cast<uint32_t>(get(p + 16, 4));
    entry.compressed = get(p + 20, 4);
    entry.size = get(p + 24, 4);
    entry.offset = get(p + 42, 4);
    read_zip64(*file_, name + name_size, extra_size, {&entry.size, &entry.compressed, &entry.offset});
    entry.offset += shift;
    entries_.push_back(std::move(entry));
    offset += kEntrySize + name_size + extra_size + comment_size;
  }
}

ZipData ZipArchive::read(const ZipEntry& entry) const {
  const unsigned char* local = at(*file_, entry.offset, kLocalSize);
  if (get(local, 4) != kLocalHeader) damaged(*file_);
  const uint64_t start = entry.offset + kLocalSize + get(local + 26, 2) + get(local + 28, 2);
  const unsigned char* data = at(*file_, start, entry.compressed);
  if (!entry.deflated) {
    if (entry.size != entry.compressed) damaged(*file_);
    return {data, entry.size, file_};
  }
  // Deflate makes nothing smaller than by a factor of 1032, so the file's size bounds the memory asked for.
  if (entry.size / 1032 > entry.compressed + 1) damaged(*file_);
  Tensor buffer(DType::kUint8, {static_cast<int64_t>(entry.size)});
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK)
    fail_as(ErrorCode::kOutOfMemory, "out of memory: ", file_->path(), " could not be inflated");
  unsigned char* out = buffer.data<uint8_t>();
  uint64_t read = 0, written = 0;
  int status = Z_OK;
  while (status == Z_OK) {  // zlib counts in 32 bits: at most 1 GiB at a time
    stream.next_in = const_cast<unsigned char*>(data) + read;
    stream.avail_in = static_cast<uInt>(std::min<uint64_t>(entry.compressed - read, 1 << 30));
    stream.next_out = out + written;
    stream.avail_out = static_cast<uInt>(std::min<uint64_t>(entry.size - written, 1 << 30));
    const uInt in = stream.avail_in, room = stream.avail_out;
    status = inflate(&stream, Z_NO_FLUSH);
    read += in - stream.avail_in;
    written += room - stream.avail_out;
    if (status == Z_OK && in == stream.avail_in && room == stream.avail_out) status = Z_BUF_ERROR;
  }
  inflateEnd(&stream);
  if (status != Z_STREAM_END || written != entry.size || crc32_z(0, out, entry.size) != entry.crc) {
    fail_as(ErrorCode::kDataDamaged, file_->path(), ": '", entry.name,
            "' is damaged: it does not inflate to what the archive says");
  }
  return {out, entry.size, std::make_shared<Tensor>(buffer)};
}

void ZipWriter::add(const std::string& name, const std::vector<std::pair<const void*, size_t>>& parts) {
  uint64_t size = 0;
  uLong crc = 0;
  for (const auto& [data, bytes] : parts) {
    size += bytes;
    crc = crc32_z(crc, static_cast<const Bytef*>(data), bytes);
  }
  const uint64_t offset = bytes_.size();
  if (offset + size + directory_.size() + 1024 + name.size() > kUse64 || count_ == 0xffff || name.size() > 0xffff) {
    fail_as(ErrorCode::kFile, "an .npz file of more than 4 GiB cannot be written; ask for fewer arrays");
  }
  constexpr uint64_t kVersion = 20, kUtf8 = 0x800, kDate = 0x21;  // 1 January 1980, the first date there is
  std::string common;                                             // what both headers have
  put(&common, kVersion, 2);
  put(&common, kUtf8, 2);
  put(&common, kStored, 2);
  put(&common, 0, 2);
  put(&common, kDate, 2);
  put(&common, crc, 4);
  put(&common, size, 4);
  put(&common, size, 4);
  put(&common, name.size(), 2);
  put(&common, 0, 2);
  put(&bytes_, kLocalHeader, 4);
  bytes_ += common + name;
  for (const auto& [data, bytes] : parts) bytes_.append(static_cast<const char*>(data), bytes);
  put(&directory_, kDirectoryEntry, 4);
  put(&directory_, kVersion, 2);
  directory_ += common;
  directory_.append(10, '\0');  // no comment, first disk, no attributes
  put(&directory_, offset, 4);
  directory_ += name;
  ++count_;
}

std::string ZipWriter::finish() {
  const uint64_t offset = bytes_.size(), size = directory_.size();
  bytes_ += directory_;
  put(&bytes_, kEnd, 4);
  put(&bytes_, 0, 4);
  put(&bytes_, count_, 2);
  put(&bytes_, count_, 2);
  put(&bytes_, size, 4);
  put(&bytes_, offset, 4);
  put(&bytes_, 0, 2);
  return std::move(bytes_);
}

}  // namespace onnx_train
