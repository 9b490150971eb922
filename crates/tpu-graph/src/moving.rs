//! One program for a view wherever it lies in its storage.
//!
//! A view's offset is part of a call's signature: a slice at a known place is the cheapest there is. A loop that walks along
//! a storage (`data[i:i + n]`, `cache[:, i] = …`) would compile for each place, so the third place of a [`Family`] makes a
//! signature for all of them, to which each call brings the offset as a number.

use crate::geometry::{View, moved};
use crate::lower::lower_node_alone;
use crate::sig::{ArgSpec, CallArg, HostValue, HostValues, Moving, Place, Sig, Target, TensorArg, TensorSpec, Way};
use smallvec::SmallVec;
use std::hash::Hash;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// Places that get a program each.
const FIXED: usize = 2;
/// Signatures for all places: which views move may differ, and how.
const MOVING: usize = 4;

/// Calls that differ in where their views begin and in nothing else.
#[derive(Default)]
pub struct Family {
    fixed: SmallVec<[Arc<Sig>; FIXED]>,
    moving: Vec<Arc<Sig>>,
}

impl Family {
    /// Takes in a signature of one place.
    pub fn add(&mut self, sig: &Arc<Sig>) {
        if self.fixed.len() < FIXED && self.fixed.iter().all(|s| s.id != sig.id) {
            self.fixed.push(sig.clone());
        }
    }

    /// The signatures of one place.
    pub fn fixed(&self) -> &[Arc<Sig>] {
        &self.fixed
    }

    /// A signature for all places that serves `args`, a call of this family (`id`) with so many host values; `None` if the
    /// family is small still, or its views can't move.
    pub fn serve<P>(&mut self, id: u128, args: &[CallArg<'_, P>], hosts: usize) -> Option<Arc<Sig>> {
        if let Some(sig) = self.moving.iter().find(|sig| serves(sig, args)) {
            return Some(sig.clone());
        }
        if self.fixed.len() < FIXED || self.moving.len() >= MOVING {
            return None;
        }
        let sig = Arc::new(moving(&self.fixed, args, hosts, id)?);
        self.moving.push(sig.clone());
        Some(sig)
    }
}

impl Sig {
    /// Appends the offsets of the views that move.
    pub fn bring_offsets<P>(&self, args: &[CallArg<'_, P>], hosts: &mut HostValues) {
        for place in &self.moving {
            let offset = place.tensor(args).map_or(0, |t| t.offset);
            hosts.push(HostValue::Scalar(tpu_base::Scalar::Int(offset)));
        }
    }

    /// Whether a view is only part of its storage, and so may begin elsewhere.
    pub fn sees_part(&self) -> bool {
        let part = |t: &TensorSpec| t.view.extent() * (t.view.dtype.size() as i64) < t.base.nbytes();
        let any = |a: &ArgSpec| match a {
            ArgSpec::Tensor(t) => part(t),
            ArgSpec::List(l) => l.iter().any(|a| matches!(a, ArgSpec::Tensor(t) if part(t))),
            _ => false,
        };
        self.args.iter().any(any)
    }

    fn writes(&self, place: Place) -> bool {
        self.outs.iter().any(|o| o.target == Target::Write(place))
    }
}

/// Every device tensor of a call.
fn tensors<'s, 'a, P>(args: &'s [CallArg<'a, P>]) -> impl Iterator<Item = (Place, &'s TensorArg<'a, P>)> {
    let many = |(arg, a): (usize, &'s CallArg<'a, P>)| -> SmallVec<[(Place, &'s TensorArg<'a, P>); 1]> {
        match a {
            CallArg::Tensor(t) => SmallVec::from_iter([(Place { arg, elem: None }, t)]),
            CallArg::Tensors(l) => {
                let one = |(i, t): (usize, &'s Option<_>)| Some((Place { arg, elem: Some(i) }, t.as_ref()?));
                l.iter().enumerate().filter_map(one).collect()
            }
            _ => SmallVec::new(),
        }
    };
    args.iter().enumerate().flat_map(many).filter(|(_, t)| t.storage.is_some())
}

fn at(spec: &TensorSpec, offset: i64) -> View {
    View { offset, ..spec.view.clone() }
}

/// Whether `sig` is right for these offsets.
fn serves<P>(sig: &Sig, args: &[CallArg<'_, P>]) -> bool {
    tensors(args).all(|(place, t)| {
        let Some(spec) = place.spec(&sig.args) else { return false };
        match spec.moving {
            None => spec.view.offset == t.offset,
            Some(Moving { flat: true, .. }) => true,
            Some(_) => {
                let there = moved(&spec.base, &at(spec, t.offset), sig.writes(place));
                there.is_some() && there == moved(&spec.base, &spec.view, sig.writes(place))
            }
        }
    })
}

/// A signature in which every view that begins elsewhere in one of `fixed` moves. Its identity is the family's and what
/// [`serves`] asks, for a plan is found by it.
fn moving<P>(fixed: &[Arc<Sig>], args: &[CallArg<'_, P>], hosts: usize, family: u128) -> Option<Sig> {
    let mut sig = (**fixed.last()?).clone();
    let mut identity = Xxh3::new();
    family.hash(&mut identity);
    if !matches!(sig.way, Way::Native) {
        return None;
    }
    for (place, t) in tensors(args) {
        let elsewhere = |s: &Arc<Sig>| place.spec(&s.args).is_some_and(|spec| spec.view.offset != t.offset);
        if !fixed.iter().any(elsewhere) {
            t.offset.hash(&mut identity);
            continue;
        }
        let (slot, written) = (hosts + sig.moving.len(), sig.writes(place));
        let spec = place.spec_mut(&mut sig.args)?;
        spec.operand?; // nothing is stored there yet: its base is not settled
        let here = moved(&spec.base, &spec.view, written);
        let sliced = here.is_some() && here == moved(&spec.base, &at(spec, t.offset), written);
        if !sliced && (spec.base.dtype != spec.view.dtype || spec.view.is_empty()) {
            return None;
        }
        here.filter(|_| sliced).hash(&mut identity);
        spec.moving = Some(Moving { slot, flat: !sliced });
        sig.moving.push(place);
    }
    if sig.moving.is_empty() {
        return None;
    }
    sig.id = identity.digest128();
    lower_node_alone(&sig).ok().map(|()| sig)
}
