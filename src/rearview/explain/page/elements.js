// Elements, for every page. Text from the data goes in as textContent only, never as markup.
function make(tag, properties = {}, ...children) {
  const { dataset, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  Object.assign(element.dataset, dataset);
  element.append(...children.filter((child) => child !== null));
  return element;
}
