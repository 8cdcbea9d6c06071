// The hashes of a prompt's blocks, with several owners, made when they are asked for.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "block_hash.hpp"

namespace native {

/// A list shared by those who hold it; copied when one of several changes it.
template <class T> class SharedList {
public:
    bool empty() const noexcept { return size() == 0; }
    size_t size() const noexcept { return list_ ? list_->size() : 0; }
    const T *data() const noexcept { return list_ ? list_->data() : nullptr; }
    const T &operator[](size_t at) const noexcept { return (*list_)[at]; }
    /// To be changed; nobody else sees it.
    std::vector<T> &own() {
        if (!list_ || list_.use_count() > 1)
            list_ = list_ ? std::make_shared<std::vector<T>>(*list_) : std::make_shared<std::vector<T>>();
        return *list_;
    }
    void shorten(size_t size) {
        if (size < this->size()) own().resize(size);
    }

private:
    std::shared_ptr<std::vector<T>> list_;
};
using TokenList = SharedList<int32_t>;

/// A hash scheme in C++.
class ChainHasher {
public:
    virtual ~ChainHasher() = default;
    /// Append the hashes of `count` blocks of `tokens`, each after the one before: the first after the last of `out`, or
    /// after `root` where `out` is empty.
    virtual void append(const BlockHash &root, const int32_t *tokens, size_t count, std::vector<BlockHash> &out) = 0;
    virtual size_t digest_bytes() const = 0;

    int64_t num_hashed = 0; // blocks, so far
};

/// The hashes of a prompt's full blocks, shared by the hit and the table. SHA-256 on a chain waits for itself and leaves
/// most of the processor idle, so that `lookup` makes no more than it needs, and `allocate` and `commit` make the others
/// one by one between other work. Nobody sees that: a copy of the tokens is kept until all are made.
class HashList {
public:
    bool empty() const noexcept { return size() == 0; }
    /// All of them, made or not.
    size_t size() const noexcept { return state_ ? std::max(state_->size, state_->made.size()) : 0; }
    size_t made() const noexcept { return state_ ? state_->made.size() : 0; }
    /// Of the leading one; those that are made later follow.
    const BlockHash *data() const noexcept { return state_ ? state_->made.data() : nullptr; }
    /// One that is made.
    const BlockHash &operator[](size_t at) const noexcept { return state_->made[at]; }
    /// Make the leading `count`, for all owners. Addresses of hashes stay.
    void reach(size_t count) const {
        if (made() < count && made() < size()) make(std::min(count, size()));
    }
    const std::vector<BlockHash> &all() const {
        static const std::vector<BlockHash> none;
        reach(size());
        return state_ ? state_->made : none;
    }
    /// To be changed, all made; nobody else sees it.
    std::vector<BlockHash> &own() {
        all();
        if (!state_ || state_.use_count() > 1) {
            auto copy = std::make_shared<State>();
            if (state_) copy->made = state_->made;
            state_ = std::move(copy);
        }
        state_->size = 0;
        return state_->made;
    }
    void shorten(size_t size) {
        if (size < this->size()) own().resize(size);
    }

    /// Of the full blocks below `root` in a prompt of `count` tokens, none of them made yet.
    static HashList of(const BlockHash &root, const int32_t *tokens, size_t count, size_t block_size,
                       std::shared_ptr<ChainHasher> hasher) {
        HashList list;
        if (count < block_size) return list;
        list.state_ = std::make_shared<State>(State{{}, count / block_size, block_size, root, {}, std::move(hasher)});
        list.state_->made.reserve(count / block_size);
        list.state_->tokens.own().assign(tokens, tokens + count);
        return list;
    }
    /// The prompt, while hashes are to be made.
    TokenList tokens() const { return state_ ? state_->tokens : TokenList(); }

private:
    struct State {
        std::vector<BlockHash> made;
        size_t size = 0, block_size = 0;
        BlockHash root;
        TokenList tokens;
        std::shared_ptr<ChainHasher> hasher;
    };
    void make(size_t count) const {
        State &state = *state_;
        const size_t have = state.made.size();
        state.hasher->append(state.root, state.tokens.data() + have * state.block_size, count - have, state.made);
        if (count == state.size) state.tokens = {};
    }

    std::shared_ptr<State> state_;
};

/// Makes the hashes of a list up to `last` evenly over a number of steps.
class HashPace {
public:
    HashPace(const HashList &list, size_t last, size_t steps)
        : list_(list), next_(list.made()), span_(std::max(next_, std::min(last, list.size())) - next_), steps_(steps) {}
    void step() {
        for (due_ += span_; due_ >= steps_; due_ -= steps_) list_.reach(++next_);
    }
    /// How many are made.
    size_t made() const { return next_; }

private:
    const HashList &list_;
    size_t next_, span_, steps_, due_ = 0;
};

} // namespace native
