// ZIP archives, as far as .npz needs them: stored and deflated entries, ZIP64, no encryption. The caller owns archives
// and writers; any thread may read an archive, one thread uses a writer. Functions throw Error that names the file.
// https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "onnx_passes/io/mapped_file.h"

namespace onnx_train {

struct ZipEntry {
  std::string name;
  bool deflated;
  uint32_t crc;
  uint64_t compressed;  // bytes in the archive
  uint64_t size;        // bytes once inflated
  uint64_t offset;      // of the local header
};

// Bytes of an entry; `owner` keeps them alive.
struct ZipData {
  const unsigned char* data;
  size_t size;
  std::shared_ptr<const void> owner;
};

class ZipArchive {
 public:
  // Reads the directory; throws Error that names the file when it is damaged.
  explicit ZipArchive(std::shared_ptr<const MappedFile> file);

  const std::vector<ZipEntry>& entries() const { return entries_; }
  // Where a stored entry lies in the mapped file; the contents of a deflated one. The checksum is verified for the
  // latter only, since the former need not be read to be mapped.
  ZipData read(const ZipEntry& entry) const;

 private:
  // `shift` is added to the offsets that the entries say.
  void parse_directory(uint64_t offset, uint64_t count, uint64_t shift);

  std::shared_ptr<const MappedFile> file_;
  std::vector<ZipEntry> entries_;
};

// Builds an archive of stored entries in memory. No dates: equal contents give equal bytes.
class ZipWriter {
 public:
  // `parts` one after the other are the entry.
  void add(const std::string& name, const std::vector<std::pair<const void*, size_t>>& parts);
  // The archive's bytes. Throws Error past 4 GiB.
  std::string finish();

 private:
  std::string bytes_, directory_;
  uint16_t count_ = 0;
};

}  // namespace onnx_train
