// Paged allocator with prefix sharing: framework.paged.allocator in C++.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "cache.hpp"
#include "python.hpp"

namespace native {

/// The blocks of a hit, and the same as the tuple that Python sees.
struct Listed {
    Blocks blocks;
    nb::object tuple;
};

/// Chained hashes of a prompt's full blocks, made for one namespace; Python sees a sequence of bytes.
struct BlockHashes {
    nb::object space;
    HashList list;
    std::shared_ptr<const Listed> found; // by the last lookup
};

/// One request's blocks, and how far they are written and published. See framework.paged.table.
struct Table {
    nb::object request, space;
    BlockHash root;
    int32_t anchor = 0, tenant = 0;
    int64_t priority = 0;
    int64_t committed = 0, published = 0, num_null = 0;
    bool closed = false, shared = false;
    Blocks blocks;
    HashList hashes;
    TokenList held;
};

struct Options {
    int32_t num_blocks, block_size;
    int64_t reserve;
    bool leaf_only, share_tails, collision_resistant, native_sha256, native_xxh3, native_lru;
};

class Core {
public:
    explicit Core(const Options &options);

    /// The Python ends: a BlockHasher, a GuardedPolicy (None for the LRU in C++), a memoryview of `candidate`.
    void bind(nb::object hasher, nb::object guard, nb::object candidates);
    void listen(nb::object listener);
    void advance(nb::object now);

    nb::object lookup(nb::handle tokens, nb::handle space, nb::handle previous);
    bool fits(nb::handle request, nb::handle tokens, nb::handle hit);
    void allocate(nb::handle request, nb::handle tokens, nb::handle hit, nb::handle num_tokens);
    nb::object extend(nb::handle request, nb::handle num_tokens);
    nb::object commit(nb::handle request, nb::handle tokens);
    void publish_ahead(nb::handle request, nb::handle tokens);
    nb::object fork(nb::handle parent, nb::handle child, nb::handle num_tokens);
    void foresee(nb::handle request, nb::handle next_use);
    /// `used`: called with the blocks before the policy is; None.
    int64_t unref_leading(nb::handle request, nb::handle num_tokens, nb::handle used);
    void discard(nb::handle request);
    void free(nb::handle request);
    nb::object table(nb::handle request);
    void reset();

    nb::tuple stats() const;
    nb::object block_hash(int32_t block) const;
    int32_t parent(int32_t block) const { return index_->parent(block); } // resident, else 0
    nb::list hashes_held(nb::handle request); // of the full blocks of a table, as far as they are known
    nb::dict state() const; // everything, for `check`
    std::shared_ptr<Pool> pool() const { return pool_; }
    int64_t hashed_blocks() const { return hashed_blocks_ + (hasher_ ? hasher_->num_hashed : 0); } // so far

    // Python objects that may lead back here; the garbage collector asks for them.
    nb::object hasher, listener;
    PythonPolicy *python_policy = nullptr;
    std::unordered_map<int64_t, Table> tables;

private:
    struct Root {
        nb::object space;
        BlockHash block_hash;
        int32_t anchor = 0;
    };

    const Root &root(nb::handle space);
    const Root *last_root(nb::handle space) const;
    const BlockHashes *own(nb::handle hashes) const; // nullptr: hashes of another make
    HashList hashes_of(nb::handle sequence) const;
    void check_hashes(nb::handle hashes, nb::handle space) const;
    nb::object hash_blocks(const Root &root, const Tokens &tokens, nb::handle space, nb::handle previous);
    void hash_more(const BlockHash &root, const Tokens &tokens, int64_t last, nb::handle space, std::vector<BlockHash> &out);
    bool has_contents(nb::handle space) const { return nb::len(get(space, framework_.keys.contents)) > 0; }
    const int32_t *comparable(const Tokens &tokens, int64_t first, int64_t last, nb::handle space,
                              std::optional<Tokens> &held) const;
    std::shared_ptr<const Listed> check_hit(nb::handle request, int64_t num_tokens, nb::handle hit, nb::object &hashes,
                                            int64_t &covered) const;
    std::shared_ptr<const Listed> listed(Blocks blocks);
    void check_new(nb::handle request) const;
    void hold(Table &table, const Tokens &tokens);
    const int64_t *find_id(nb::handle request, int64_t &id) const;
    Table &find(nb::handle request, int64_t *id = nullptr);
    [[noreturn]] void out_of_blocks(int64_t need, int64_t have, int64_t reserve) const;
    nb::object changed(size_t start);
    nb::object changed(size_t start, const Blocks &sources, const Blocks &copies) const;
    void compare(const Table &table, nb::handle request, const Tokens &tokens) const;
    size_t publish(Table &table, int64_t full, const Tokens &tokens);
    void require_kept(const char *call, const Table &table, int64_t num_tokens) const;
    int32_t tenant(nb::handle name);

    Framework framework_;
    Options options_;
    std::shared_ptr<Pool> pool_;
    std::unique_ptr<Index> index_;
    std::unique_ptr<Policy> policy_;
    std::unique_ptr<Cache> cache_;
    std::unordered_set<int32_t> ahead_; // published, and computed in the step at hand
    std::shared_ptr<ChainHasher> hasher_; // of the framework's own schemes; kept by the lists it has yet to finish
    Root last_roots_[2]; // of two objects that are often equal: a lookup's namespace and its request's
    std::vector<std::shared_ptr<const Listed>> listed_; // of late, by the last block: many requests share few prefixes
    nb::dict tenants_;
    std::vector<nb::object> changes_; // changes without copies are shared: they cannot change
    int64_t version_ = 0, hashed_blocks_ = 0, hit_tokens_ = 0, prompt_tokens_ = 0, copied_blocks_ = 0;
};

void bind_core(nb::module_ &module);

} // namespace native
