//! Finds circles of files: the strongly connected components of the graph of files, by Tarjan's algorithm.

use crate::tree::Crate;
use std::collections::BTreeSet;

/// Returns the circles of at least two files with their names, the largest first.
pub fn of(source: &Crate) -> Vec<Vec<String>> {
    let mut uses = vec![BTreeSet::new(); source.files.len()];
    for (index, module) in source.modules.iter().enumerate() {
        let used = module.mentions.iter().filter_map(|path| source.defining_file(index, path));
        uses[module.file].extend(used.filter(|file| *file != module.file));
    }
    let mut search = Search::new(&uses);
    (0..uses.len()).for_each(|file| search.visit(file));
    let name = |file: &usize| source.files[*file].display().to_string();
    let mut circles: Vec<Vec<_>> =
        search.circles.iter().map(|circle| circle.iter().map(name).collect()).collect();
    circles.iter_mut().for_each(|circle| circle.sort());
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

struct Search<'a> {
    uses: &'a [BTreeSet<usize>],
    /// The order in which the files were visited.
    order: Vec<Option<usize>>,
    /// The earliest file on the stack that each file can reach, in the order of visits.
    lowest: Vec<usize>,
    stack: Vec<usize>,
    reached: usize,
    circles: Vec<Vec<usize>>,
}

impl<'a> Search<'a> {
    fn new(uses: &'a [BTreeSet<usize>]) -> Self {
        let count = uses.len();
        let (order, lowest) = (vec![None; count], vec![0; count]);
        Self { uses, order, lowest, stack: Vec::new(), reached: 0, circles: Vec::new() }
    }

    fn visit(&mut self, file: usize) {
        if self.order[file].is_some() {
            return;
        }
        self.order[file] = Some(self.reached);
        self.lowest[file] = self.reached;
        self.reached += 1;
        self.stack.push(file);
        for &used in &self.uses[file] {
            match self.order[used] {
                None => {
                    self.visit(used);
                    self.lowest[file] = self.lowest[file].min(self.lowest[used]);
                }
                Some(order) if self.stack.contains(&used) => {
                    self.lowest[file] = self.lowest[file].min(order);
                }
                // The file belongs to a complete component.
                Some(_) => {}
            }
        }
        if self.order[file] == Some(self.lowest[file])
            && let Some(place) = self.stack.iter().position(|&other| other == file)
        {
            let circle = self.stack.split_off(place);
            if circle.len() > 1 {
                self.circles.push(circle);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(edges: &[(usize, usize)], files: usize) -> Vec<Vec<usize>> {
        let mut uses = vec![BTreeSet::new(); files];
        edges.iter().for_each(|&(from, to)| {
            uses[from].insert(to);
        });
        let mut search = Search::new(&uses);
        (0..files).for_each(|file| search.visit(file));
        search.circles.iter_mut().for_each(|circle| circle.sort_unstable());
        search.circles
    }

    #[test]
    fn files_that_depend_on_each_other_form_a_circle() {
        assert_eq!(circles(&[(0, 1), (1, 2), (2, 0), (2, 3)], 4), [[0, 1, 2]]);
        assert_eq!(circles(&[(0, 1), (1, 0), (2, 3), (3, 2), (1, 2)], 4), [[2, 3], [0, 1]]);
    }

    #[test]
    fn files_that_depend_one_way_form_no_circle() {
        assert!(circles(&[(0, 1), (0, 2), (1, 3), (2, 3)], 4).is_empty());
    }
}
