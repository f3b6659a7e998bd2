//! Where a count is kept: which key, and which field of it.
//!
//! The seed's: a hash for each bucket, `<type>:<epoch>:<shard>` -> `{id: count}`, or flat, `<type>:<epoch>:<shard>:<id>`.
//! The epoch is the number of the bucket, and the shard a virtual node that spreads the ids of a bucket over several keys.

use md5::{Digest, Md5};

use crate::rules::series::python::bytes_repr;
use crate::values::error::Error;
use crate::values::key::hex;
use crate::values::number::parse_integer;

/// What is counted, as a stable number. The gate's own are below; any other number is yours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Model(u16);

impl Model {
    /// Requests that a policy let through.
    pub const ALLOWED: Self = Self(1);
    /// Requests that a policy refused.
    pub const DENIED: Self = Self(2);
    /// Requests that a policy could not count, because its store failed.
    pub const DEGRADED: Self = Self(3);
    /// Requests that a policy would have refused, if it did more than watch.
    pub const SHADOWED: Self = Self(4);

    /// The model with that number: yours, or one of the program whose counters you read.
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// The number in keys.
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// Who or what is counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Id {
    /// A number.
    Integer(i64),
    /// Bytes, UTF-8 where it is text.
    Text(Vec<u8>),
}

impl From<i64> for Id {
    fn from(id: i64) -> Self {
        Self::Integer(id)
    }
}

impl From<&str> for Id {
    fn from(id: &str) -> Self {
        Self::Text(id.as_bytes().to_vec())
    }
}

/// Longest id that a layout with readable ids takes, in bytes.
const MAX_ID: usize = 256;

/// Most virtual nodes.
const MAX_VNODES: u32 = 16_384;

/// How a bucket is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `<type>:<epoch>:<shard>` is a hash from id to count.
    Hash,
    /// `<type>:<epoch>:<shard>:<id>` is one count.
    Flat,
}

/// How an id is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// As it is, so that ids can be listed.
    Plain,
    /// Text by its MD5, as Sentry does.
    Hashed,
}

/// Where a count is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    prefix: String,
    vnodes: u32,
    form: Form,
    names: Names,
    tagged: bool,
}

/// The place of one count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The key.
    pub key: Vec<u8>,
    /// The field, when the key holds a hash.
    pub field: Option<Vec<u8>>,
}

impl Default for Layout {
    /// Hashes with readable ids over 64 virtual nodes, each a hash tag: `ts:1:170000000:{46}`. So all levels of an id
    /// live on one shard and are one atomic batch there.
    fn default() -> Self {
        Self { prefix: "ts:".to_owned(), vnodes: 64, form: Form::Hash, names: Names::Plain, tagged: true }
    }
}

impl Layout {
    /// Sentry's, byte for byte: prefix `ts:`, 64 virtual nodes, text ids by the MD5 of their repr.
    pub fn sentry() -> Self {
        Self { names: Names::Hashed, tagged: false, ..Self::default() }
    }

    /// The seed's hash: `<type>:<epoch>:<shard>` -> `{id: count}`.
    pub fn seed() -> Self {
        Self { prefix: String::new(), tagged: false, ..Self::default() }
    }

    /// The seed's flat form: `<type>:<epoch>:<shard>:<id>`. Its ids cannot be listed, so there is no top of them.
    pub fn flat() -> Self {
        Self { form: Form::Flat, ..Self::seed() }
    }

    /// With another prefix.
    #[must_use]
    pub fn with_prefix(self, prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), ..self }
    }

    /// With another number of virtual nodes, 1 to 16,384. It decides where counts are: all readers and writers must agree.
    pub fn with_vnodes(self, vnodes: u32) -> Result<Self, Error> {
        if (1..=MAX_VNODES).contains(&vnodes) {
            return Ok(Self { vnodes, ..self });
        }
        Err(Error::invalid("vnodes", format_args!("1 to {MAX_VNODES}, got {vnodes}")))
    }

    /// How many virtual nodes there are.
    pub const fn vnodes(&self) -> u32 {
        self.vnodes
    }

    /// Whether all buckets of a virtual node live on one shard.
    pub const fn is_tagged(&self) -> bool {
        self.tagged
    }

    /// Whether the ids of a bucket can be listed.
    pub fn lists_ids(&self) -> bool {
        self.form == Form::Hash
    }

    /// The key of a virtual node of a bucket, and of all of its ids where buckets are hashes.
    pub fn bucket_key(&self, model: Model, index: u64, vnode: u32) -> Vec<u8> {
        self.key(&self.prefix, model, index, vnode)
    }

    /// The key of the sketch of a bucket's ids.
    pub fn distinct_key(&self, model: Model, index: u64, vnode: u32) -> Vec<u8> {
        self.key(&format!("{}distinct:", self.prefix), model, index, vnode)
    }

    fn key(&self, prefix: &str, model: Model, index: u64, vnode: u32) -> Vec<u8> {
        let (open, close) = if self.tagged { ("{", "}") } else { ("", "") };
        format!("{prefix}{}:{index}:{open}{vnode}{close}", model.0).into_bytes()
    }

    /// Where the count of `id` is in the bucket with that number.
    ///
    /// ```
    /// use tollgate::{Id, Layout, Model};
    /// let place = Layout::sentry().place(Model::new(1), 170_000_000, &Id::from("foo"))?;
    /// assert_eq!(place.key, b"ts:1:170000000:46");
    /// assert_eq!(place.field.as_deref(), Some(&b"bf4e529197e56a48ae2737505b9736e4"[..]));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn place(&self, model: Model, index: u64, id: &Id) -> Result<Place, Error> {
        let name = self.name(id)?;
        let mut key = self.bucket_key(model, index, self.vnode(&name));
        match self.form {
            Form::Hash => Ok(Place { key, field: Some(name.into_bytes()) }),
            Form::Flat => {
                key.push(b':');
                key.extend_from_slice(&name.into_bytes());
                Ok(Place { key, field: None })
            }
        }
    }

    /// The virtual node of `id`: an integer's remainder, else the signed CRC-32 of its name's, both floored.
    pub fn vnode_of(&self, id: &Id) -> Result<u32, Error> {
        Ok(self.vnode(&self.name(id)?))
    }

    fn vnode(&self, name: &Name) -> u32 {
        let number = match name {
            Name::Integer(number) => *number,
            // Python 2's crc32 is signed.
            Name::Text(text) => crc32fast::hash(text).cast_signed().into(),
        };
        let vnode = number.checked_rem_euclid(self.vnodes.into()).unwrap_or(0);
        u32::try_from(vnode).unwrap_or(0)
    }

    /// How `id` is called in keys and fields.
    fn name(&self, id: &Id) -> Result<Name, Error> {
        match (id, self.names) {
            (Id::Integer(number), _) => Ok(Name::Integer(*number)),
            (Id::Text(text), Names::Hashed) => Ok(Name::Text(hex(&Md5::digest(bytes_repr(text))).into_bytes())),
            (Id::Text(text), Names::Plain) if text.len() <= MAX_ID => {
                // Text that is a number is that number: they have the same name, so they must have the same place.
                Ok(parse_integer(text).map_or_else(|| Name::Text(text.clone()), Name::Integer))
            }
            (Id::Text(text), Names::Plain) => {
                Err(Error::invalid("id", format_args!("at most {MAX_ID} bytes, got {}", text.len())))
            }
        }
    }

    /// The id with that name in a bucket; a hashed text stays what it was hashed to.
    pub fn id_of(&self, name: &[u8]) -> Id {
        parse_integer(name).map_or_else(|| Id::Text(name.to_vec()), Id::Integer)
    }
}

enum Name {
    Integer(i64),
    Text(Vec<u8>),
}

impl Name {
    fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Integer(number) => number.to_string().into_bytes(),
            Self::Text(text) => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::series::rollup::Rollups;
    use crate::values::time::Timestamp;

    /// Sentry's layout, computed by its definitions in Python.
    const VECTORS: &str = include_str!("../../../tests/vectors/counters.json");

    #[test]
    fn keys_fields_and_expiries_are_sentrys() {
        let vectors: serde_json::Value = serde_json::from_str(VECTORS).unwrap();
        let vectors = vectors["vectors"].as_array().unwrap();
        assert!(vectors.len() >= 9);
        for vector in vectors {
            let number = |name: &str| vector[name].as_u64().unwrap();
            let id = match vector["key"].as_i64() {
                Some(number) => Id::Integer(number),
                None => Id::from(vector["key"].as_str().unwrap()),
            };
            let model = Model::new(u16::try_from(number("model")).unwrap());
            let layout = Layout::sentry().with_vnodes(u32::try_from(number("vnodes")).unwrap()).unwrap();
            assert_eq!(u64::from(layout.vnode_of(&id).unwrap()), number("vnode"), "{vector}");
            let at = Timestamp::from_millis(number("epoch") * 1000);
            for level in Rollups::default().levels() {
                let secs = (level.step().as_millis() / 1000).to_string();
                let place = layout.place(model, level.index(at), &id).unwrap();
                assert_eq!(String::from_utf8(place.key).unwrap(), vector["hash_keys"][&secs].as_str().unwrap());
                assert_eq!(place.field.unwrap(), vector["model_key"].as_str().unwrap().as_bytes());
                assert_eq!(level.expires(at).as_millis() / 1000, vector["expire_at"][&secs].as_u64().unwrap());
            }
        }
    }

    #[test]
    fn the_seeds_own_example_has_its_keys() {
        let place =
            |layout: Layout, id| layout.with_vnodes(1).unwrap().place(Model::new(1), 1_399_958_363, &id).unwrap();
        let hash = place(Layout::seed(), Id::Integer(1));
        assert_eq!((hash.key, hash.field), (b"1:1399958363:0".to_vec(), Some(b"1".to_vec())));
        let flat = place(Layout::flat(), Id::Integer(1));
        assert_eq!((flat.key, flat.field), (b"1:1399958363:0:1".to_vec(), None));
    }

    #[test]
    fn a_number_and_its_text_are_one_id_where_they_have_one_name() {
        let place = |id| Layout::default().place(Model::new(7), 1, &id).unwrap();
        assert_eq!(place(Id::Integer(130)), place(Id::from("130")));
        assert_ne!(place(Id::Integer(7)).key, place(Id::from("007")).key);
        assert_eq!(Layout::default().id_of(b"130"), Id::Integer(130));
        let long = Id::Text(vec![b'x'; MAX_ID + 1]);
        assert!(Layout::default().place(Model::new(7), 1, &long).unwrap_err().message().starts_with("id: expected"));
        assert!(Layout::sentry().place(Model::new(7), 1, &long).is_ok(), "a digest is short");
        assert!(Layout::default().with_vnodes(0).is_err());
        assert_eq!(Layout::default().vnode_of(&Id::Integer(i64::MIN)).unwrap(), 0);
    }
}
