// The chained hash of a block's content, as a hash scheme made it.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace native {

/// Up to 32 bytes in place; longer ones lie on the heap, shared. Empty means: no hash.
class BlockHash {
public:
    static constexpr size_t kNear = 32;

    BlockHash() noexcept { clear_bytes(); }
    BlockHash(const void *data, size_t size) {
        clear_bytes();
        if (size <= kNear) {
            std::memcpy(bytes_, data, size);
            size_ = static_cast<uint8_t>(size);
        } else {
            set_far(new Far{1, std::string(static_cast<const char *>(data), size)});
        }
    }
    BlockHash(const BlockHash &other) noexcept {
        std::memcpy(bytes_, other.bytes_, kNear + 1);
        if (size_ == kFar) ++far()->owners;
    }
    BlockHash(BlockHash &&other) noexcept {
        clear_bytes();
        swap(other);
    }
    BlockHash &operator=(const BlockHash &other) noexcept {
        if (size_ != kFar && other.size_ != kFar) {
            uint8_t copy[kNear + 1]; // of fixed size, so that no function is called
            std::memcpy(copy, other.bytes_, sizeof copy);
            std::memcpy(bytes_, copy, sizeof copy);
        } else if (this != &other) {
            this->~BlockHash();
            new (this) BlockHash(other);
        }
        return *this;
    }
    BlockHash &operator=(BlockHash &&other) noexcept {
        swap(other);
        return *this;
    }
    ~BlockHash() {
        if (size_ == kFar && --far()->owners == 0) delete far();
    }

    bool empty() const noexcept { return size_ == 0; }
    size_t size() const noexcept { return size_ == kFar ? far()->text.size() : size_; }
    const char *data() const noexcept {
        return size_ == kFar ? far()->text.data() : reinterpret_cast<const char *>(bytes_);
    }
    void clear() noexcept { release(); }
    /// The 32 bytes in place, for a fixed-width digest to write to.
    uint8_t *digest() noexcept {
        if (size_ == kFar) release();
        size_ = kNear;
        return bytes_;
    }

    bool operator==(const BlockHash &other) const noexcept {
        if (size_ != other.size_) return false;
        if (size_ != kFar) {
            uint64_t ours[kNear / 8], theirs[kNear / 8]; // likewise
            std::memcpy(ours, bytes_, kNear);
            std::memcpy(theirs, other.bytes_, kNear);
            return ((ours[0] ^ theirs[0]) | (ours[1] ^ theirs[1]) | (ours[2] ^ theirs[2]) | (ours[3] ^ theirs[3])) == 0;
        }
        return far() == other.far() || far()->text == other.far()->text;
    }
    bool operator!=(const BlockHash &other) const noexcept { return !(*this == other); }

    /// All bytes mixed: hashes need not be uniform (a scheme may count).
    uint64_t mixed() const noexcept {
        if (size_ == kFar) return mix(std::hash<std::string>{}(far()->text), kFar);
        uint64_t words[4];
        std::memcpy(words, bytes_, kNear);
        const uint64_t sum = words[0] + words[1] * 0x9E3779B97F4A7C15ull + words[2] * 0xE7037ED1A0B428DBull +
                             words[3] * 0xA0761D6478BD642Full + size_;
        return mix(sum, kFar);
    }

private:
    struct Far {
        uint32_t owners;
        std::string text;
    };
    static constexpr uint8_t kFar = 255;

    static uint64_t mix(uint64_t a, uint64_t b) noexcept {
        const auto product = static_cast<unsigned __int128>(a ^ 0x9E3779B97F4A7C15ull) * (b ^ 0xE7037ED1A0B428DBull);
        return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    }
    Far *far() const noexcept {
        Far *found;
        std::memcpy(&found, bytes_, sizeof found);
        return found;
    }
    void set_far(Far *far) noexcept {
        std::memcpy(bytes_, &far, sizeof far);
        size_ = kFar;
    }
    void clear_bytes() noexcept {
        std::memset(bytes_, 0, kNear);
        size_ = 0;
    }
    void release() noexcept {
        if (size_ == kFar && --far()->owners == 0) delete far();
        clear_bytes();
    }
    void swap(BlockHash &other) noexcept {
        uint8_t spare[kNear];
        std::memcpy(spare, bytes_, kNear);
        std::memcpy(bytes_, other.bytes_, kNear);
        std::memcpy(other.bytes_, spare, kNear);
        std::swap(size_, other.size_);
    }

    uint8_t bytes_[kNear]; // unaligned on purpose: 33 bytes a hash, two hashes a block; the size follows them
    uint8_t size_;
};

struct BlockHashMix {
    size_t operator()(const BlockHash &block_hash) const noexcept { return block_hash.mixed(); }
};

} // namespace native
