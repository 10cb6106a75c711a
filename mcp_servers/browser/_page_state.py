"""What of a page's state its address doesn't tell: fields, places scrolled to, focus. Scripts that read and write it.

An element goes by its path from the root, child by child, through shadow roots.
"""

__all__ = ["KEEP_SESSION_STORAGE", "READ", "READ_SESSION_STORAGE", "SCROLL", "WRITE"]

_PATHS = """
  const pathOf = element => {
    const path = [];
    for (let node = element; node && node !== document.documentElement;) {
      const parent = node.parentNode;
      if (!parent)
        return null;
      path.unshift([...parent.children].indexOf(node));
      node = parent;
      if (node instanceof ShadowRoot) {
        path.unshift(-1);
        node = node.host;
      }
    }
    return path;
  };
  const at = (path, tag) => {
    let node = document.documentElement;
    for (const step of path) {
      node = step === -1 ? node?.shadowRoot : node?.children[step];
      if (!node)
        return null;
    }
    return node.tagName === tag ? node : null;
  };
  const all = root => [...root.querySelectorAll('*')].flatMap(
    element => element.shadowRoot ? [element, ...all(element.shadowRoot)] : [element]);
  const focused = () => {
    let element = document.activeElement;
    while (element?.shadowRoot?.activeElement)
      element = element.shadowRoot.activeElement;
    return element && element !== document.body ? element : null;
  };
"""

# Only what differs from what the page's own text says, except where that can't be known.
READ = f"""() => {{
  {_PATHS}
  const fields = [], scrolled = [];
  let files = 0;
  for (const element of all(document)) {{
    const add = (kind, value) => fields.push({{path: pathOf(element), tag: element.tagName, kind, value}});
    if (element instanceof HTMLInputElement) {{
      if (element.type === 'file')
        files += element.files.length;
      else if (element.type === 'checkbox' || element.type === 'radio') {{
        if (element.checked !== element.defaultChecked)
          add('checked', element.checked);
        if (element.indeterminate)
          add('indeterminate', true);
      }} else if (element.value !== element.defaultValue)
        add('value', element.value);
    }} else if (element instanceof HTMLTextAreaElement) {{
      if (element.value !== element.defaultValue)
        add('value', element.value);
    }} else if (element instanceof HTMLSelectElement)
      add('selected', [...element.options].map(option => option.selected));
    else if (element instanceof HTMLDetailsElement)
      add('open', element.open);
    else if (element.isContentEditable && !element.parentElement?.isContentEditable)
      add('html', element.innerHTML);
    if (element !== document.scrollingElement && (element.scrollTop || element.scrollLeft))
      scrolled.push({{path: pathOf(element), tag: element.tagName, x: element.scrollLeft, y: element.scrollTop}});
  }}
  const focus = focused();
  let selection = null;
  try {{
    selection = focus && [focus.selectionStart ?? null, focus.selectionEnd ?? null];
  }} catch {{
    // Some kinds of fields have none.
  }}
  return {{
    fields, scrolled, files,
    window: [scrollX, scrollY],
    focus: focus && {{path: pathOf(focus), tag: focus.tagName, selection}},
  }};
}}"""

# Events tell the page of what changed, as they did when it was done by hand.
WRITE = f"""state => {{
  {_PATHS}
  const set = (element, name, value) => {{
    for (let kind = element; kind; kind = Object.getPrototypeOf(kind)) {{
      const property = Object.getOwnPropertyDescriptor(kind, name);
      if (property?.set && kind !== element)
        return property.set.call(element, value);
    }}
    element[name] = value;
  }};
  const names = {{value: 'value', checked: 'checked', html: 'innerHTML', open: 'open', indeterminate: 'indeterminate'}};
  let missing = 0;
  for (const {{path, tag, kind, value}} of state.fields) {{
    const element = path && at(path, tag);
    if (!element) {{
      missing++;
      continue;
    }}
    if (kind === 'selected') {{
      const options = [...element.options];
      if (options.length !== value.length) {{
        missing++;
        continue;
      }}
      if (options.every((option, index) => option.selected === value[index]))
        continue;
      options.forEach((option, index) => option.selected = value[index]);
    }} else {{
      if (element[names[kind]] === value)
        continue;
      set(element, names[kind], value);
    }}
    if (kind === 'open' || kind === 'indeterminate')
      continue;
    element.dispatchEvent(new InputEvent('input', {{bubbles: true, composed: true}}));
    if (kind !== 'html')
      element.dispatchEvent(new Event('change', {{bubbles: true}}));
  }}
  return missing;
}}"""

SCROLL = f"""state => {{
  {_PATHS}
  const focus = state.focus && state.focus.path && at(state.focus.path, state.focus.tag);
  if (focus) {{
    focus.focus({{preventScroll: true}});
    try {{
      if (state.focus.selection && state.focus.selection[0] !== null)
        focus.setSelectionRange(...state.focus.selection);
    }} catch {{
      // Some kinds of fields have none.
    }}
  }}
  for (const {{path, tag, x, y}} of state.scrolled)
    (path && at(path, tag))?.scrollTo({{left: x, top: y, behavior: 'instant'}});
  scrollTo({{left: state.window[0], top: state.window[1], behavior: 'instant'}});
}}"""

READ_SESSION_STORAGE = """() => {
  try {
    return [location.origin, Object.entries(sessionStorage)];
  } catch {
    return ['', []];
  }
}"""

# Runs before the page's own scripts; `%s` is an object from origins to entries.
KEEP_SESSION_STORAGE = """(() => {
  try {
    const entries = (%s)[location.origin];
    if (entries && !sessionStorage.length)
      entries.forEach(([key, value]) => sessionStorage.setItem(key, value));
  } catch {
    // Pages without an origin have no storage.
  }
})()"""
